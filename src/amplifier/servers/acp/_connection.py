"""A JSON-RPC 2.0 connection with one message per line, and the standard streams for it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, TypeAlias

import anyio
import attrs
import orjson
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from amplifier._internal.json import JSON, redact_text
from amplifier._internal.message_lines import read_chunk, write_all

logger: logging.Logger = logging.getLogger("amplifier.servers.acp")

# ── messages ──

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SESSION_NOT_FOUND: Final = -32002
"""The protocol's own code for a resource that does not exist."""


class RpcError(Exception):
    """An error that answers the other side's request.

    Attributes:
        code: The code of JSON-RPC.
        message: The message.
        message_id: The id of the request, or None if it couldn't be read.
    """

    def __init__(self, code: int, message: str, *, message_id: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.message_id = message_id


@attrs.frozen(kw_only=True)
class Call:
    """A request, or a notification, which has no id and needs no answer."""

    method: str
    params: dict[str, JSON]
    id: str | int | None
    is_request: bool


def encode(**message: Any) -> bytes:
    """Return a message as a line."""
    return orjson.dumps({"jsonrpc": "2.0", **message}, default=str) + b"\n"


def read_message(line: bytes) -> Call | dict[str, JSON]:
    """Read one line: a call, or the unchanged answer to one of our requests."""
    try:
        value = orjson.loads(line)
    except ValueError as error:
        raise RpcError(
            PARSE_ERROR, f"not valid JSON: {error}; expected one JSON-RPC 2.0 message per line"
        ) from None
    if not isinstance(value, dict):
        kind = (
            "a batch, which this protocol does not have"
            if isinstance(value, list)
            else type(value).__name__
        )
        raise RpcError(INVALID_REQUEST, f"expected one JSON object per line, got {kind}")
    message_id = value.get("id")
    if isinstance(message_id, bool) or not isinstance(message_id, str | int | None):
        raise RpcError(
            INVALID_REQUEST, f"id: expected a text or a whole number, got {message_id!r:.80}"
        )
    if value.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc: expected "2.0"', message_id=message_id)
    if "method" not in value and ("result" in value or "error" in value):
        return value
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str):
        raise RpcError(
            INVALID_REQUEST, f"method: expected a text, got {method!r:.80}", message_id=message_id
        )
    if params is not None and not isinstance(params, dict):
        raise RpcError(
            INVALID_PARAMS, f"params: expected an object, got {params!r:.80}", message_id=message_id
        )
    return Call(method=method, params=params or {}, id=message_id, is_request="id" in value)


# ── the connection ──

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes in one message. A prompt with embedded files may be long."""

_MAX_QUEUED = 64
"""Number of messages that may wait for a slow client before the turn has to wait."""

_DRAIN_SECONDS = 5.0
"""Seconds for writing the last messages when the connection is being closed."""

Work: TypeAlias = Callable[[], Awaitable[Any]]
"""The rest of a request, which returns its result."""

Begin: TypeAlias = Callable[[Call], Work | None]
"""Starts a request or handles a notification.

The function doesn't wait, so that messages take effect in the order of their arrival.
"""


class ByteStream(Protocol):
    """The bytes from and to a client."""

    async def receive(self) -> bytes:
        """Return the next bytes, or no bytes at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Write everything. Raise OSError if the reader has gone."""
        ...


class Connection:
    """The connection of one client. Each of its requests runs in its own task."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._outgoing: MemoryObjectSendStream[bytes] | None = None
        self._reading = anyio.CancelScope()
        self._waiting: dict[Any, MemoryObjectSendStream[dict[str, JSON]]] = {}
        self._requests = 0
        self.lost: OSError | None = None

    def __repr__(self) -> str:
        return f"<Connection: {len(self._waiting)} requests to the client without an answer>"

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Allow messages inside the block. At its end, write the remaining ones, within limits."""
        self._outgoing, incoming = anyio.create_memory_object_stream[bytes](_MAX_QUEUED)
        async with anyio.create_task_group() as group:
            group.start_soon(self._write, incoming)
            try:
                yield
            finally:
                self._outgoing.close()
                # The writer ends after its last message, unless the client has stopped reading.
                group.cancel_scope.deadline = anyio.current_time() + _DRAIN_SECONDS

    async def _write(self, messages: MemoryObjectReceiveStream[bytes]) -> None:
        with messages:
            try:
                async for message in messages:
                    await self._stream.send(message)
            except OSError as error:
                self.lost = error
                self._reading.cancel()

    async def _send(self, message: bytes) -> None:
        assert self._outgoing is not None
        try:
            await self._outgoing.send(message)
        except anyio.BrokenResourceError:
            # The client is gone, and everything is being cancelled.
            return

    # ── reading ──

    async def read(self, begin: Begin) -> None:
        """Handle messages until the client leaves. Then cancel its requests and wait for them."""
        async with anyio.create_task_group() as group:
            with self._reading:
                async for line in self._lines():
                    await self._handle(line, begin, group)
            group.cancel_scope.cancel()

    async def _lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines that aren't blank. None stands for a line that was too long."""
        buffer = bytearray()
        is_too_long = False
        while data := await self._stream.receive():
            searched = len(buffer)
            buffer += data
            while (end := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:end]).strip()
                del buffer[: end + 1]
                searched = 0
                if is_too_long:
                    is_too_long = False
                    yield None
                elif line:
                    yield line
            if len(buffer) > MAX_LINE_BYTES:
                buffer.clear()
                is_too_long = True

    async def _handle(self, line: bytes | None, begin: Begin, group: TaskGroup) -> None:
        try:
            if line is None:
                raise RpcError(PARSE_ERROR, f"a message longer than {MAX_LINE_BYTES // 2**20} MiB")
            message = read_message(line)
        except RpcError as error:
            await self._send(_error(error.message_id, error))
            return
        if isinstance(message, Call):
            if (work := await self._begin(begin, message)) is not None:
                group.start_soon(self._answer, message, work)
        elif (waiting := self._waiting.pop(message.get("id"), None)) is not None:
            waiting.send_nowait(message)
        else:
            # This is usually an answer that came too late, after its turn was stopped.
            logger.debug(
                "an answer to a request that is no longer waiting: id %r", message.get("id")
            )

    async def _begin(self, begin: Begin, call: Call) -> Work | None:
        try:
            work = begin(call)
        except RpcError as error:
            if call.is_request:
                await self._send(_error(call.id, error))
            else:
                logger.warning("%s: %s", call.method, error.message)
            return None
        return work if call.is_request else None

    async def _answer(self, call: Call, work: Work) -> None:
        try:
            answer = encode(id=call.id, result=await work())
        except RpcError as error:
            answer = _error(call.id, error)
        except Exception as error:  # third-party code
            logger.exception("%s failed", call.method)
            answer = _error(
                call.id, RpcError(INTERNAL_ERROR, redact_text(f"{type(error).__name__}: {error}"))
            )
        await self._send(answer)

    # ── requests of ours ──

    async def notify(self, method: str, params: dict[str, JSON]) -> None:
        """Send a notification. Wait for a slow client."""
        await self._send(encode(method=method, params=params))

    async def request(self, method: str, params: dict[str, JSON]) -> Any:
        """Send a request to the client and return its result.

        Raises:
            RpcError: The client answered with an error.
        """
        self._requests += 1
        number = self._requests
        answered, answer = anyio.create_memory_object_stream[dict[str, JSON]](1)
        self._waiting[number] = answered
        try:
            with answered, answer:
                await self._send(encode(id=number, method=method, params=params))
                reply = await answer.receive()
        finally:
            self._waiting.pop(number, None)
        if (error := reply.get("error")) is not None:
            problem = error if isinstance(error, dict) else {"message": error}
            code = problem.get("code")
            raise RpcError(
                code if isinstance(code, int) else INTERNAL_ERROR,
                str(problem.get("message") or "no reason"),
            )
        return reply.get("result")


def _error(message_id: Any, error: RpcError) -> bytes:
    return encode(id=message_id, error={"code": error.code, "message": error.message})


# ── standard streams ──
#
# The descriptors 0 and 1 are replaced with the null device and standard error. So the output of
# modules and their child processes ends up in the client's log instead of between two messages.

_WRITE_AT_ONCE = 4096
"""The number of bytes that a ready pipe accepts without blocking (PIPE_BUF)."""


class StandardStreams:
    """Two descriptors as byte streams.

    The descriptors stay in blocking mode, since other processes may share them.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target

    async def receive(self) -> bytes:
        """Return the next bytes, or no bytes at the end of input."""
        return await read_chunk(self._source)

    async def send(self, data: bytes) -> None:
        """Write everything.

        Raises:
            OSError: The reader has gone, or the system refuses.
        """
        await write_all(self._target, data, chunk=_WRITE_AT_ONCE)


@contextmanager
def taken_standard_streams() -> Iterator[StandardStreams]:
    """Take over stdin and stdout, and restore them on exit."""
    sys.stdout.flush()
    # Child processes don't inherit these descriptors.
    source, target = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        yield StandardStreams(source, target)
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        for descriptor in (null, source, target):
            os.close(descriptor)
