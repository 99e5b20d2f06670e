"""From a line of an event log to an event, or to the reason why it cannot be read; nothing here raises."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import orjson

_VERSION: Final = 1
"""The major version of the log format that is understood."""
_LONGEST_UNREAD: Final = 500
_NOT_PAYLOAD: Final = frozenset({"ts", "lvl", "schema", "event", "session_id", "data"})


@attrs.frozen(kw_only=True)
class LogEvent:
    """One event.

    Attributes:
        number: The number of its line, over all logs of a trace.
        session_id: Empty if the line has none.
        at: When, in seconds since 1970; None if the line has no valid time.
        data: The payload.
    """

    number: int
    name: str
    session_id: str
    at: float | None
    level: str
    data: dict[str, Any]

    def text(self, key: str) -> str:
        """A text of the payload; empty if there is none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""


@attrs.frozen(kw_only=True)
class UnreadLine:
    """A line that is no event.

    Attributes:
        number: Its number, over all logs of a trace.
        reason: What is wrong with it.
        text: Its beginning.
    """

    number: int
    reason: str
    text: str


def read_line(line: bytes, number: int) -> LogEvent | UnreadLine:
    """Read one line.

    Args:
        line: With or without its newline.
        number: Its number, over all logs of a trace.
    """
    record = _parse(line)
    if record is None:
        # Only a writer that was killed, or is writing at this moment, leaves a line without a newline.
        reason = "not JSON" if line.endswith(b"\n") else "incomplete: its writer was killed, or is writing it now"
        return _unread(line, number, reason)
    if not isinstance(record, dict):
        return _unread(line, number, f"expected a JSON object, got {type(record).__name__}")
    if (version := _newer_version(record.get("schema"))) is not None:
        reason = f"written in version {version} of the format, expected {_VERSION}.x; read it with a newer release"
        return _unread(line, number, reason)
    name = record.get("event")
    if not isinstance(name, str) or not name:
        return _unread(line, number, "expected a member 'event' with the name of an event")
    data = record.get("data")
    payload = {key: value for key, value in record.items() if key not in _NOT_PAYLOAD}
    payload.update(data if isinstance(data, dict) else {} if data is None else {"data": data})
    session_id, level = record.get("session_id"), record.get("lvl")
    return LogEvent(
        number=number,
        name=name,
        session_id=session_id if isinstance(session_id, str) else "",
        at=_seconds(record.get("ts")),
        level=level if isinstance(level, str) else "",
        data=payload,
    )


def _unread(line: bytes, number: int, reason: str) -> UnreadLine:
    text = line[:_LONGEST_UNREAD].decode(errors="backslashreplace").rstrip("\n")
    return UnreadLine(number=number, reason=reason, text=text)


def _parse(line: bytes) -> Any:
    """The JSON value of a line; None if it is no JSON."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        return json.loads(line)  # takes lone surrogates and deeper nesting
    except (ValueError, RecursionError):
        return None


def _newer_version(schema: Any) -> str | None:
    version = schema.get("ver") if isinstance(schema, dict) else None
    if not isinstance(version, str):
        return None
    major = version.partition(".")[0]
    return version[:40] if major.isdecimal() and len(major) < 10 and int(major) > _VERSION else None


def _seconds(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
