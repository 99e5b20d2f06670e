"""The process of a server: started in a process group of its own, and ended with everything in that group.

Starting never awaits, so no cancellation comes between the start and the code that ends it. The leader of the group is reaped
last: as long as it is not, its id cannot belong to another group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from pathlib import Path

import anyio

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
    """A running server.

    Args:
        options: The server's.
        directory: Where it runs, unless its options name another directory.

    Raises:
        ToolFailure: It cannot be started.
    """

    def __init__(self, options: ServerOptions, directory: Path) -> None:
        self._options = options
        self._stderr = b""
        self._popen = _start(options, options.cwd or directory)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._pipes = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe, False)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._popen.pid

    def note_stderr(self, data: bytes) -> None:
        """Keep the last bytes of what it wrote to its standard error."""
        self._stderr = (self._stderr + data)[-_MOST_STDERR:]

    async def wait_for_death(self) -> None:
        """Wait until the process has ended, without reaping it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no such call on this system
            await poll_until(self._has_ended)
            return
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def _has_ended(self) -> bool:
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    async def end(self) -> None:
        """End the process and its group: close its input, then SIGTERM, then SIGKILL. Bounded, but not shielded."""
        grace = self._options.stop_grace
        self.close_pipes()
        if not self._has_ended():
            with anyio.move_on_after(grace):
                await self.wait_for_death()
        if not self._has_ended():
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self.wait_for_death()
        self.kill()
        with anyio.move_on_after(_KILLING):
            await poll_until(lambda: self._popen.poll() is not None)
        if self._popen.returncode is None:
            logger.warning("server %r: process %d was killed and is still there", self._options.name, self.pid)

    def kill(self) -> None:
        """Kill everything in the group that is left."""
        self._signal(signal.SIGKILL)

    def close_pipes(self) -> None:
        """Close our ends of its streams."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is None:  # once reaped, the id may belong to others
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def how_it_ended(self) -> str:
        """How the process ended and the end of what it wrote to its standard error, for messages."""
        code = self._popen.poll()
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


def _start(options: ServerOptions, directory: Path) -> subprocess.Popen[bytes]:
    assert options.command is not None
    inherited = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    about = f"server {options.name!r}: the command {shown(options.command, 200)!r}"
    try:
        return subprocess.Popen(
            [options.command, *options.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=directory,
            env={**inherited, **options.env},
            start_new_session=True,  # Ctrl-C must not reach the server: the session ends it
        )
    except FileNotFoundError as error:
        if str(error.filename) == str(directory):
            raise ToolFailure(
                "ServerUnavailable",
                f"server {options.name!r}: its working directory {shown(str(directory))!r} does not exist",
            ) from None
        raise ToolFailure(
            "ServerUnavailable", f"{about} was not found; install it, or name it with its path in the plan"
        ) from None
    except OSError as error:
        raise ToolFailure("ServerUnavailable", f"{about} cannot be started: {error.strerror or error}") from None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
