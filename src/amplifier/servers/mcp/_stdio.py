"""Messages over the standard streams of this process.

The SDK has such a transport, too; it reads in a thread that no signal and no cancellation ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from amplifier.modules._shared.message_lines import LineSplitter

from ..acp import StandardStreams, taken_standard_streams

_MOST_BYTES = 64 * 1024 * 1024
_LAST_ANSWERS = 2.0
"""Seconds for writing the last answers to a client that has left its end open."""

Inbox: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def open_standard_streams() -> AsyncIterator[Streams]:
    """Read and write messages until the client closes its end."""
    with taken_standard_streams() as streams:
        inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outbox, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        written = anyio.Event()
        with inbox, received, outbox, to_send:
            async with anyio.create_task_group() as group:
                group.start_soon(_read, streams, inbox)
                group.start_soon(_write, streams, to_send, written)
                yield received, outbox
                outbox.close()
                with anyio.move_on_after(_LAST_ANSWERS):
                    await written.wait()
                group.cancel_scope.cancel()


async def _read(streams: StandardStreams, inbox: Inbox) -> None:
    lines = LineSplitter(_MOST_BYTES)
    with inbox:
        try:
            while chunk := await streams.receive():
                for line in lines.feed(chunk):
                    if line.strip():
                        await inbox.send(_parsed(line))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the server is leaving


def _parsed(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    streams: StandardStreams, to_send: MemoryObjectReceiveStream[SessionMessage], written: anyio.Event
) -> None:
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await streams.send(text.encode("utf-8") + b"\n")
    except OSError:
        to_send.close()  # the client has gone; the end of its input follows
    finally:
        written.set()
