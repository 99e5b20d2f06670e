"""The process of a server: started below the supervisor, and ended with everything that it started.

Starting never awaits, so no cancellation comes between the start and the code that ends it. Where there is no supervisor (it needs
Linux), the process leads a group of its own, and only the members of that group are ended with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread

from .._shared.started_process import StartedProcess, can_supervise, launch
from .._tool_base import ToolFailure, poll_until, shown
from ._options import ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

_KILLING = 2.0
"""Seconds after which a process that does not even die of SIGKILL is given up and named in the log."""
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
"""Environment variables that a server gets besides its own; API keys of other services are not passed on."""
_INHERITED_PREFIXES = ("LC_", "XDG_")
_MOST_STDERR = 8192


class ServerProcess:
    """A server that was started.

    Args:
        options: The server's.
        directory: Where it runs, unless its options name another directory.

    Raises:
        ToolFailure: It cannot be started.
    """

    def __init__(self, options: ServerOptions, directory: Path) -> None:
        self._options = options
        self._stderr = b""
        self._start_problem: str | None = None
        self._is_released = False
        self._started = _start(options, options.cwd or directory)
        child = self._started.process
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._pipes = (child.stdin, child.stdout, child.stderr)
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe, False)

    @property
    def pid(self) -> int:
        """The id of the process and of its group; 0 before `wait_until_running`."""
        return self._started.group

    def note_stderr(self, data: bytes) -> None:
        """Keep the last bytes of what it wrote to its standard error."""
        self._stderr = (self._stderr + data)[-_MOST_STDERR:]

    async def wait_until_running(self) -> None:
        """Wait until the supervisor has started the process.

        Raises:
            ToolFailure: It cannot be started.
        """
        if self._started.group == 0 and self._started.end is not None:
            await anyio.wait_readable(self._started.end)
        try:
            self._started.wait_started()  # does not block: a line is there
        except OSError as error:
            raise _not_startable(self._options, error) from None

    async def wait_for_death(self) -> None:
        """Wait until the process has ended."""
        while not self._has_ended():
            if self._started.end is None:
                await poll_until(self._has_ended)
            else:
                await anyio.wait_readable(self._started.end)

    def _has_ended(self) -> bool:
        try:
            return self._started.has_ended()
        except OSError as error:  # the supervisor reports that the program could not be executed
            self._start_problem = f"cannot be started: {error.strerror}"
            return True

    async def end(self) -> None:
        """End the process and all it started: close its input, then SIGTERM, then SIGKILL. Bounded, but not shielded."""
        grace = self._options.stop_grace
        self.close_pipes()
        if self.pid and not self._has_ended():
            with anyio.move_on_after(grace):
                await self.wait_for_death()
        if self.pid and not self._has_ended():
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self.wait_for_death()
        self._signal(signal.SIGKILL)
        with anyio.move_on_after(_KILLING):
            if self.pid:
                await self.wait_for_death()
        if self.pid and not self._has_ended():
            logger.warning("server %r: process %d was killed and is still there", self._options.name, self.pid)
        self._is_released = True
        await anyio.to_thread.run_sync(self._started.close)

    def kill_rest(self) -> None:
        """Kill everything that a process has left behind that has ended."""
        self._signal(signal.SIGKILL)
        self._is_released = True
        self._started.release()

    def close_pipes(self) -> None:
        """Close our ends of its streams."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.pid and not self._is_released:  # once it is released, the id may belong to others
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def how_it_ended(self) -> str:
        """How the process ended and the end of what it wrote to its standard error, for messages."""
        if self._start_problem is not None:
            return self._start_problem
        code = self._started.returncode
        if code is None:
            ended = "closed its standard output"
        elif code < 0:
            ended = f"was killed by {_signal_name(-code)}"
        else:
            ended = f"ended with exit code {code}"
        lines = self._stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-3:]
        if not lines:
            return ended
        return (
            f"{ended}; its last lines on standard error: {shown(self._options.without_secrets(' | '.join(lines)), 500)}"
        )


def _start(options: ServerOptions, directory: Path) -> StartedProcess:
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
    program = shutil.which(directory / command if os.sep in command else command, path=environment.get("PATH"))
    if program is None:
        raise ToolFailure(
            "ServerUnavailable",
            f"{_about(options)} was not found; install it, or name it with its path in the plan",
        )
    try:
        return launch(
            [os.path.abspath(program), *options.args],  # noqa: PTH100 - the name stays as it is: no links are followed
            directory=str(directory),
            environment=environment,
            confinement={} if can_supervise() else None,
            stdin=subprocess.PIPE,
        )
    except OSError as error:
        raise _not_startable(options, error) from None


def _not_startable(options: ServerOptions, error: OSError) -> ToolFailure:
    return ToolFailure("ServerUnavailable", f"{_about(options)} cannot be started: {error.strerror or error}")


def _about(options: ServerOptions) -> str:
    return f"server {options.name!r}: the command {shown(options.command or '', 200)!r}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
