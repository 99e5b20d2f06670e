r"""The lines of a conversation's files. Pure: bytes in, records out, and back.

A line of the conversation is ``<crc32 of the rest, 8 hex digits> <number> <link> <compact JSON>\n``. The link is a hash of the link
before it and the JSON, so that a line which was dropped, doubled or moved does not fit. The step journal, and conversations of
earlier releases (version 1), have lines without number and link. The first line identifies the file; each of the others
is one record: a message, or in the step journal what is known about a call. JSON text holds no raw newline, so a newline ends a line and nothing else.

Only the last record can be half written, by a crash in the middle of an append that was never acknowledged: such a tail is
left out. Anything else that does not check is damage, and damage is reported, never skipped: a wrong line with right ones
behind it, and a last line that is whole and readable but not what was written.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
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
        version: The newest one of the format; earlier ones are read, too.
        what: The file, in words.
        key: A text that every record has.
        linked_since: The first version whose lines have a number and a link.
    """

    file: str
    format: str
    version: int
    what: str
    key: str
    linked_since: int | None = None

    def is_linked(self, version: int) -> bool:
        """Whether the lines of this version have a number and a link."""
        return self.linked_since is not None and version >= self.linked_since


CONVERSATION: Final = LogKind(
    file="messages.log",
    format="amplifier-context",
    version=2,
    what="conversation file",
    key="role",
    linked_since=2,
)
STEPS: Final = LogKind(file="steps.log", format="amplifier-steps", version=1, what="step journal", key="step")

_LINE = re.compile(rb"([0-9a-f]{8}) ((?:([0-9]{1,15}) ([0-9a-f]{16}) )?(\{.*\}))", re.DOTALL)
_START = re.compile(rb"[0-9a-f]{8} (?:[0-9]{1,15} [0-9a-f]{16} )?\{")
_MAX_DEPTH = 200  # below what the decoder manages on any stack
_NOT_JSON = "message cannot be kept as JSON"


@attrs.define(eq=False)  # not frozen: one is made for each line of a long file; it never changes
class Chain:
    """The end of a file, to which the next line is linked.

    Attributes:
        is_linked: Whether the lines of this file have a number and a link.
        lines: How many there are.
        link: That of the last one.
    """

    is_linked: bool
    lines: int = 0
    link: bytes = b""

    def add(self, texts: Iterable[bytes]) -> tuple[bytes, Chain]:
        """The lines for records, which are given as JSON, and the end of the file behind them."""
        chain, lines = self, []
        for text in texts:
            chain = chain._behind(text)
            rest = b"%d %s %s" % (chain.lines, chain.link, text) if self.is_linked else text
            lines.append(b"%08x %s\n" % (zlib.crc32(rest), rest))
        return b"".join(lines), chain

    def _behind(self, text: bytes) -> Chain:
        link = hashlib.blake2b(self.link + b" " + text, digest_size=8).hexdigest().encode() if self.is_linked else b""
        return Chain(self.is_linked, self.lines + 1, link)

    def follow(self, line: _Line) -> tuple[Chain, str | None]:
        """The end of the file behind a line that was read, and why the line cannot be there, if it cannot."""
        chain = self._behind(line.text)
        if not self.is_linked:
            return chain, None
        if line.number is None:
            return chain, "the record has no number; all records of this file have one"
        if line.number > chain.lines:
            missing = "record is" if line.number == chain.lines + 1 else "records are"
            return chain, f"{line.number - chain.lines} {missing} missing before record {line.number}"
        if line.number < chain.lines:
            return chain, f"record {line.number} is here again, or was moved; expected record {chain.lines}"
        if line.link != chain.link:
            return chain, f"record {line.number} does not belong behind the one before it; one of them was replaced"
        return chain, None


@attrs.define(eq=False)  # not frozen: one is made for each line of a long file
class _Line:
    """A line as it was written: its number and link, if it has them, and its JSON."""

    number: int | None
    link: bytes
    text: bytes
    record: dict[str, Any]


@attrs.frozen
class Scan:
    """What a file holds.

    Attributes:
        generation: How often the conversation had been replaced.
        records: In order, without the first one.
        size: Bytes up to the end of the last record.
        torn: Bytes behind it, of a record that was never finished.
        chain: The end of the last record.
    """

    generation: int
    records: list[dict[str, Any]]
    size: int
    torn: int
    chain: Chain


def new_file(
    session_id: str, generation: int, texts: Iterable[bytes], kind: LogKind = CONVERSATION
) -> tuple[bytes, Chain]:
    """A whole file in the newest version, and its end.

    Args:
        session_id: The session of the conversation.
        generation: How often the file was replaced, this time included.
        texts: The records as JSON.
        kind: Which file.
    """
    header = {"format": kind.format, "version": kind.version, "session_id": session_id, "generation": generation}
    return Chain(kind.is_linked(kind.version)).add([_text_of(header), *texts])


def encode_message(message: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """A message as JSON, and as it will be read back from it.

    Raises:
        ModelError: It has no JSON form; the path names the place.
    """
    try:
        text = _text_of(message)
        kept: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        canonical_dumps(message)  # raises an error with the path
        raise ModelError([("", str(error))], subject=_NOT_JSON) from error
    if kept != message:  # tuples are welcome and come back as arrays; other keys than text would come back as text
        rebuild(message, _refuse_other_keys, subject=_NOT_JSON)
    if text.count(b"[") + text.count(b"{") > _MAX_DEPTH:
        rebuild(kept, subject=_NOT_JSON, max_depth=_MAX_DEPTH)
    return text, kept


def _refuse_other_keys(value: Any, frames: Sequence[Frame]) -> Any:
    if frames and frames[-1].keys is not None and not isinstance(frames[-1].key(), str):
        problem = f"expected a str as key, got {type(frames[-1].key()).__name__}"
        raise ModelError([(format_path(frame.key() for frame in frames), problem)], subject=_NOT_JSON)
    return value


def _text_of(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # lone surrogates, as in the name of a file; escaped they come back as they were
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


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
    generation, chain = 0, Chain(is_linked=False)
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        line = None if end < 0 else _decode(data[position:end])
        if line is None:
            if not records:
                raise LogDamagedError(path, 1, f"this is not the beginning of a {kind.what}")
            if (reason := _why_not_torn(data, position, end)) is not None:
                raise LogDamagedError(path, len(records) + 1, reason)
            break
        if not records:
            generation = _read_header(line.record, path, session_id, kind)
            chain = Chain(kind.is_linked(line.record["version"]))
        chain, reason = chain.follow(line)
        records.append(line.record)
        if reason is not None:
            raise LogDamagedError(path, len(records), reason)
        if len(records) > 1 and not isinstance(line.record.get(kind.key), str):
            no = "no message" if kind is CONVERSATION else "none of this file"
            raise LogDamagedError(path, len(records), f"the record is {no}: it has no {kind.key}")
        position = end + 1
    if not records:
        raise LogDamagedError(path, 1, f"this is not the beginning of a {kind.what}")
    return Scan(generation, records[1:], position, len(data) - position, chain)


def _decode(line: bytes) -> _Line | None:
    """A line that is as it was written."""
    match = _LINE.fullmatch(line)
    if match is None or int(match[1], 16) != zlib.crc32(match[2]):
        return None
    record = _parse(match[5])
    return (
        None
        if record is None
        else _Line(None if match[3] is None else int(match[3]), match[4] or b"", match[5], record)
    )


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(str(body, "utf-8", "surrogatepass"))  # of bytes it would guess the encoding first
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _why_not_torn(data: bytes, position: int, end: int) -> str | None:
    """Why a line that does not check cannot be the trace of an append that a crash cut short, or None if it can."""
    if end < 0:
        return None
    # A torn write leaves a piece, zeros or rubbish; a whole record with another checksum was changed afterwards.
    match = _LINE.fullmatch(data[position:end])
    if match is not None and _parse(match[5]) is not None:
        return "the record was changed: its checksum is wrong"
    for line in data[position + 1 :].split(b"\n")[:-1]:
        # Anywhere in a line: the damaged byte may be the newline before a whole record.
        if any(_decode(line[start.start() :]) is not None for start in _START.finditer(line)):
            return "the record is damaged, and whole ones follow it"
    return None


def _read_header(header: dict[str, Any], path: Path, session_id: str, kind: LogKind) -> int:
    version, generation, owner = header.get("version"), header.get("generation"), header.get("session_id")
    if header.get("format") != kind.format or not isinstance(generation, int):
        raise LogDamagedError(path, 1, f"this is not the beginning of a {kind.what}")
    if not isinstance(version, int) or not 1 <= version <= kind.version:
        newer = " (a newer release wrote it)" if isinstance(version, int) and version > kind.version else ""
        reason = f"it is written in version {version!r} of the format, expected {kind.version}{newer}"
        raise LogDamagedError(path, 1, reason)
    if owner != session_id:
        # Some file systems take "Anna" and "anna" for one name.
        raise LogDamagedError(path, 1, f"it is the conversation of session {owner!r}, not of {session_id!r}")
    return generation
