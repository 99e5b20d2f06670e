"""Messages over the standard streams of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
from mcp.server.stdio import stdio_server

from amplifier.modules._shared.message_lines import LineSplitter

from ..acp import StandardStreams, taken_standard_streams

_MOST_BYTES = 64 * 1024 * 1024
_LAST_ANSWERS = 2.0
"""Seconds for writing the last answers to a client that has left its end open."""


@attrs.frozen
class _Lines:
    """The streams in place of the files of the SDK, which are read in a thread that no signal and no cancellation ends."""

    streams: StandardStreams

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines = LineSplitter(_MOST_BYTES)
        while chunk := await self.streams.receive():
            for line in lines.feed(chunk):
                if line.strip():
                    yield line

    async def write(self, text: str) -> None:
        try:
            await self.streams.send(text.encode())
        except OSError:  # the client has gone; the end of its input follows
            raise anyio.ClosedResourceError from None

    async def flush(self) -> None:
        """Everything is written already."""


@asynccontextmanager
async def open_standard_streams() -> AsyncIterator[tuple[Any, Any]]:
    """Streams of messages, for a server, until the client closes its end."""
    with taken_standard_streams() as streams, anyio.CancelScope() as scope:
        lines: Any = _Lines(streams)
        async with stdio_server(lines, lines) as opened:
            yield opened
            scope.deadline = anyio.current_time() + _LAST_ANSWERS
