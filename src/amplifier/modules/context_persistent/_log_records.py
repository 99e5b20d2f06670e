r"""The lines of a conversation's files. Pure: bytes in, records out, and back.

A line is ``<crc32 of the JSON, 8 hex digits> <compact JSON>\n``. The first one identifies the file; each of the others
is one record: a message, or in the step journal what is known about a call. JSON text holds no raw newline, so a newline ends a line and nothing else.

Only the last record can be half written, by a crash in the middle of an append that was never acknowledged: such a tail is
left out. Anything else that does not check is damage, and damage is reported, never skipped: a wrong line with right ones
behind it, and a last line that is whole and readable but not what was written.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from amplifier._json import Frame, canonical_dumps, format_path, rebuild
from amplifier.errors import ModelError

from ._errors import LogDamagedError


@attrs.frozen(kw_only=True)
class LogKind:
    """One kind of file.

    Attributes:
        file: Its name.
        format: How its first line names it.
        version: Of the format.
        what: The file, in words.
        key: A text that every record has.
    """

    file: str
    format: str
    version: int
    what: str
    key: str


CONVERSATION: Final = LogKind(
    file="messages.log", format="amplifier-context", version=1, what="conversation file", key="role"
)
STEPS: Final = LogKind(file="steps.log", format="amplifier-steps", version=1, what="step journal", key="step")

_LINE = re.compile(rb"([0-9a-f]{8}) (\{.*\})", re.DOTALL)
_START = re.compile(rb"[0-9a-f]{8} \{")
_MAX_DEPTH = 200  # below what the decoder manages on any stack
_NOT_JSON = "message cannot be kept as JSON"


@attrs.frozen
class Scan:
    """What a file holds.

    Attributes:
        generation: How often the conversation had been replaced.
        records: In order, without the first one.
        size: Bytes up to the end of the last record.
        torn: Bytes behind it, of a record that was never finished.
    """

    generation: int
    records: list[dict[str, Any]]
    size: int
    torn: int


def encode_header(session_id: str, generation: int, kind: LogKind = CONVERSATION) -> bytes:
    """The first line of a file."""
    return _line({"format": kind.format, "version": kind.version, "session_id": session_id, "generation": generation})


def encode_message(message: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """A message as a line, and as it will be read back from it.

    Raises:
        ModelError: It has no JSON form; the path names the place.
    """
    try:
        line = _line(message)
        kept: dict[str, Any] = json.loads(line[9:])
    except (TypeError, ValueError, RecursionError) as error:
        canonical_dumps(message)  # raises an error with the path
        raise ModelError([("", str(error))], subject=_NOT_JSON) from error
    if kept != message:  # tuples are welcome and come back as arrays; other keys than text would come back as text
        rebuild(message, _refuse_other_keys, subject=_NOT_JSON)
    if line.count(b"[") + line.count(b"{") > _MAX_DEPTH:
        rebuild(kept, subject=_NOT_JSON, max_depth=_MAX_DEPTH)
    return line, kept


def _refuse_other_keys(value: Any, frames: Sequence[Frame]) -> Any:
    if frames and frames[-1].keys is not None and not isinstance(frames[-1].key(), str):
        problem = f"expected a str as key, got {type(frames[-1].key()).__name__}"
        raise ModelError([(format_path(frame.key() for frame in frames), problem)], subject=_NOT_JSON)
    return value


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        body = text.encode()
    except UnicodeEncodeError:  # lone surrogates, as in the name of a file; escaped they come back as they were
        body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def scan(data: bytes, path: Path, session_id: str, kind: LogKind = CONVERSATION) -> Scan:
    """Read a file.

    Args:
        data: All of it.
        path: Where it is, for errors.
        session_id: The session it must belong to.
        kind: What it must be.

    Raises:
        LogDamagedError: It is not this session's file, or not as it was written.
    """
    records: list[dict[str, Any]] = []
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        record = None if end < 0 else _decode(data[position:end])
        if record is None:
            if not records:
                raise LogDamagedError(path, 1, f"this is not the beginning of a {kind.what}")
            if (reason := _why_not_torn(data, position, end)) is not None:
                raise LogDamagedError(path, len(records) + 1, reason)
            break
        records.append(record)
        position = end + 1
    generation = _read_header(records, path, session_id, kind)
    for number, record in enumerate(records[1:], start=2):
        if not isinstance(record.get(kind.key), str):
            no = "no message" if kind is CONVERSATION else "none of this file"
            raise LogDamagedError(path, number, f"the record is {no}: it has no {kind.key}")
    return Scan(generation, records[1:], position, len(data) - position)


def _decode(line: bytes) -> dict[str, Any] | None:
    """The record of a line that is as it was written."""
    match = _LINE.fullmatch(line)
    if match is None or int(match[1], 16) != zlib.crc32(match[2]):
        return None
    return _parse(match[2])


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _why_not_torn(data: bytes, position: int, end: int) -> str | None:
    """Why a line that does not check cannot be the trace of an append that a crash cut short, or None if it can."""
    if end < 0:
        return None
    # A torn write leaves a piece, zeros or rubbish; a whole record with another checksum was changed afterwards.
    match = _LINE.fullmatch(data[position:end])
    if match is not None and _parse(match[2]) is not None:
        return "the record was changed: its checksum is wrong"
    for line in data[position + 1 :].split(b"\n")[:-1]:
        # Anywhere in a line: the damaged byte may be the newline before a whole record.
        if any(_decode(line[start.start() :]) is not None for start in _START.finditer(line)):
            return "the record is damaged, and whole ones follow it"
    return None


def _read_header(records: list[dict[str, Any]], path: Path, session_id: str, kind: LogKind) -> int:
    header = records[0] if records else {}
    version, generation, owner = header.get("version"), header.get("generation"), header.get("session_id")
    if header.get("format") != kind.format or not isinstance(generation, int):
        raise LogDamagedError(path, 1, f"this is not the beginning of a {kind.what}")
    if version != kind.version:
        newer = " (a newer release wrote it)" if isinstance(version, int) and version > kind.version else ""
        reason = f"it is written in version {version!r} of the format, expected {kind.version}{newer}"
        raise LogDamagedError(path, 1, reason)
    if owner != session_id:
        # Some file systems take "Anna" and "anna" for one name.
        raise LogDamagedError(path, 1, f"it is the conversation of session {owner!r}, not of {session_id!r}")
    return generation
