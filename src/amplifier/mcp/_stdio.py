"""Messages over the standard streams of this process.

The SDK has such a transport, too; it reads in a thread that no signal and no cancellation ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from amplifier.modules._shared.message_lines import LineSplitter, read_chunk, write_all

_MOST_BYTES = 64 * 1024 * 1024
_ATOMIC = 4096
"""Bytes that a writable pipe takes without blocking; the descriptors are shared with other processes, so they stay blocking."""
_LAST_ANSWERS = 2.0
"""Seconds for writing the last answers to a client that has left its end open."""

Inbox: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@contextmanager
def _own_descriptors() -> Iterator[tuple[int, int]]:
    """Copies of standard input and output; meanwhile input is empty, and what is printed goes to standard error."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        for descriptor in (source, target, nothing):
            os.close(descriptor)


@asynccontextmanager
async def open_standard_streams() -> AsyncIterator[Streams]:
    """Read and write messages until the client closes its end."""
    with _own_descriptors() as (source, target):
        inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outbox, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        written = anyio.Event()
        with inbox, received, outbox, to_send:
            async with anyio.create_task_group() as group:
                group.start_soon(_read, source, inbox)
                group.start_soon(_write, target, to_send, written)
                yield received, outbox
                outbox.close()
                with anyio.move_on_after(_LAST_ANSWERS):
                    await written.wait()
                group.cancel_scope.cancel()


async def _read(source: int, inbox: Inbox) -> None:
    lines = LineSplitter(_MOST_BYTES)
    with inbox:
        try:
            while chunk := await read_chunk(source):
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


async def _write(target: int, to_send: MemoryObjectReceiveStream[SessionMessage], written: anyio.Event) -> None:
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await write_all(target, text.encode("utf-8") + b"\n", chunk=_ATOMIC)
    except OSError:
        to_send.close()  # the client has gone; the end of its input follows
    finally:
        written.set()
