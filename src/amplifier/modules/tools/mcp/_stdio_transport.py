"""Messages over the standard streams of a server process: one JSON-RPC message per line.

The SDK has such a transport, too. This one reads in linear time, notices the death of a process whose children keep its output
open, never makes a cancelled call wait for a server that does not read, and reports what is not a message by the server's name.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from amplifier._programs import find_program
from amplifier.contracts import Coordinator

from ..._shared.failure import ToolFailure, shown
from ..._shared.message_lines import LineSplitter, LineTooLong, read_chunk, write_all
from ..._shared.shielded import run_shielded
from ..._shared.started_process import ServiceProcess
from ._options import ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

_WAITING_MESSAGES = 1024
"""Messages that may wait for a server that does not read; sending one then neither blocks nor delays a cancelled call."""
_LAST_WORDS = 0.2
"""Seconds in which the rest of the output of a dead process is read."""

_MOST_STDERR = 8192
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
"""Environment variables that a server gets besides its own; API keys of other services are not passed on."""
_INHERITED_PREFIXES = ("LC_", "XDG_")

Inbox = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class StdioTransport:
    """The transport of one process.

    Args:
        options: The server's.
        directory: Where it runs, unless its options name another directory.
        max_bytes: Of one message.
        coordinator: Of the session that owns the server.
        on_lost: Called once when no more messages will come.

    Attributes:
        loss: Why no more messages will come, if that is not how the process ended.
        garbage: The first line that was no message, as it may be shown.
    """

    def __init__(
        self,
        options: ServerOptions,
        directory: Path,
        *,
        max_bytes: int,
        coordinator: Coordinator,
        on_lost: Callable[[], None],
    ) -> None:
        self._options = options
        self._directory = directory
        self._max_bytes = max_bytes
        self._coordinator = coordinator
        self._on_lost = on_lost
        self._process: ServiceProcess | None = None
        self._stderr = b""
        self.loss: str | None = None
        self.garbage: str | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, once it is running."""
        return None if self._process is None else self._process.group or None

    @property
    def hint(self) -> str:
        """What the server printed instead of messages, as an addition to a message."""
        return "" if self.garbage is None else f"; it printed {self.garbage}, which is no message"

    def how_it_ended(self) -> str:
        """Why the connection was lost, for messages."""
        if self.loss is not None or self._process is None:
            return self.loss or "was not started"
        ended = self._process.how_it_ended()
        lines = self._stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-3:]
        if not lines:
            return ended
        words = shown(self._options.without_secrets(" | ".join(lines)), 500)
        return f"{ended}; its last lines on standard error: {words}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the process; it and everything it started have ended when this is left.

        Raises:
            ToolFailure: It cannot be started.
        """
        process = self._process = _start(self._options, self._options.cwd or self._directory)
        try:
            try:
                await process.wait_until_running()
            except OSError as error:
                raise _not_startable(self._options, error) from None
            inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            outbox, to_send = anyio.create_memory_object_stream[SessionMessage](_WAITING_MESSAGES)
            with inbox, received, outbox, to_send:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._read, process, inbox, group)
                    group.start_soon(self._write, process, to_send, inbox)
                    group.start_soon(self._read_stderr, process)
                    yield received, outbox
                    group.cancel_scope.cancel()
        finally:
            await run_shielded(
                self._coordinator, process.end, self._options.stop_grace, name=f"end of MCP server {self._options.name}"
            )

    # ── from the server ──

    async def _read(self, process: ServiceProcess, inbox: Inbox, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(self._watch, process)
        lines = LineSplitter(self._max_bytes)
        try:
            while chunk := await read_chunk(process.stdout):
                for line in lines.feed(chunk):
                    message = self._parse(line)
                    if message is not None:
                        await inbox.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the client is leaving
        except LineTooLong:
            self.loss = f"sent a message of more than {self._max_bytes} bytes; raise max_message_bytes"
        self._lose(inbox)

    def _parse(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._report_garbage(line)
            return None

    def _report_garbage(self, line: bytes) -> None:
        """Report the first line that is no message; a server that goes on is not reported again."""
        if self.garbage is None:
            start = line[:200].decode("utf-8", "backslashreplace")
            self.garbage = shown(ascii(self._options.without_secrets(start)), 120)
            logger.warning(
                "server %r printed a line that is no JSON-RPC message, ignored: %s; a server has to log to standard error",
                self._options.name,
                self.garbage,
            )

    async def _watch(self, process: ServiceProcess) -> None:
        """After the death of the process, end what it started, which may keep its output open."""
        await process.wait_for_death()
        await anyio.sleep(_LAST_WORDS)
        process.kill_rest()

    async def _read_stderr(self, process: ServiceProcess) -> None:
        while data := await read_chunk(process.stderr):
            self._stderr = (self._stderr + data)[-_MOST_STDERR:]
            logger.debug(
                "server %r: %s",
                self._options.name,
                self._options.without_secrets(data.decode("utf-8", "backslashreplace").rstrip()),
            )

    # ── to the server ──

    async def _write(
        self, process: ServiceProcess, to_send: MemoryObjectReceiveStream[SessionMessage], inbox: Inbox
    ) -> None:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await write_all(process.stdin, text.encode("utf-8") + b"\n")
            except OSError as error:
                if error.errno != errno.EPIPE:
                    self.loss = f"cannot be written to: {error.strerror or error}"
                self._lose(inbox)
                return

    def _lose(self, inbox: Inbox) -> None:
        inbox.close()
        self._on_lost()


def _start(options: ServerOptions, directory: Path) -> ServiceProcess:
    assert options.command is not None
    inherited = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    environment = {**inherited, **options.env}
    if not directory.is_dir():
        raise ToolFailure(
            "ServerUnavailable",
            f"server {options.name!r}: its working directory {shown(str(directory))!r} does not exist",
        )
    command = options.command
    # A name with a slash is relative to the working directory of the server, as the system has it.
    if os.sep in command:
        program = shutil.which(directory / command)
    else:
        program = find_program(command, path=environment.get("PATH"), avoid=[directory])
    if program is None:
        raise ToolFailure(
            "ServerUnavailable",
            f"{_about(options)} was not found on the search path outside of the working directory; install it, or name it with its path in the plan",
        )
    try:
        return ServiceProcess(
            [os.path.abspath(program), *options.args],  # noqa: PTH100 - the name stays as it is: no links are followed
            directory=str(directory),
            environment=environment,
        )
    except OSError as error:
        raise _not_startable(options, error) from None


def _not_startable(options: ServerOptions, error: OSError) -> ToolFailure:
    return ToolFailure("ServerUnavailable", f"{_about(options)} cannot be started: {error.strerror or error}")


def _about(options: ServerOptions) -> str:
    return f"server {options.name!r}: the command {shown(options.command or '', 200)!r}"
