"""Parses server-sent events from bytes without I/O; any split of the bytes gives the same events.

The SDKs' own decoders are nested async generators: left unfinished, they emit warnings on trio and leave stray tasks on
asyncio.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, final

import attrs

MAX_EVENT_BYTES = 16 * 2**20
"""The limit on one event, so that a server cannot fill the memory with one endless line."""

_LINE_END = re.compile(rb"[\r\n]")


@attrs.frozen
class SseEvent:
    """One event: its name, if it has one, and its data as text."""

    name: str | None
    data: str


@final
class SseParser:
    """Collects bytes and returns complete events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._name: str | None = None
        self._after_cr = False
        self._first = True

    def feed(self, received: bytes) -> list[SseEvent]:
        """Add received bytes and return the events they complete.

        Raises:
            ValueError: The bytes are not UTF-8, or an event is larger than `MAX_EVENT_BYTES`.
        """
        events: list[SseEvent] = []
        start = 0
        for found in _LINE_END.finditer(received):
            end = found.start()
            is_second_half = self._after_cr and end == start and received[end] == 0x0A
            self._after_cr = received[end] == 0x0D
            if not is_second_half:
                self._line += received[start:end]
                self._take_line(events)
            start = end + 1
        if start < len(received):
            self._after_cr = False
            self._line += received[start:]
            self._check_size()
        return events

    def end(self) -> list[SseEvent]:
        """End the stream; an event without its closing blank line counts, as in the SDKs."""
        events: list[SseEvent] = []
        if self._line:
            self._take_line(events)
        self._dispatch(events)
        return events

    def _take_line(self, events: list[SseEvent]) -> None:
        self._check_size()
        line = self._line.decode("utf-8")
        self._line.clear()
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(value)
        elif field == "event":
            self._name = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._name, "\n".join(self._data)))
        self._data, self._size, self._name = [], 0, None

    def _check_size(self) -> None:
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is larger than {MAX_EVENT_BYTES} bytes")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: with an option, `json.loads` makes one per call


def read_json(text: str | bytes) -> Any:
    """Parse JSON exactly: integers of any size, and no NaN.

    Raises:
        ValueError: It is not JSON, or is nested too deeply.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
