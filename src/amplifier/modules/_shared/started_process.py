"""A program that was started: directly, or below the supervisor, which sees every process that the program starts.

Blocking, `launch` excepted; for worker threads.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import marshal
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import process_tree

logger = logging.getLogger("amplifier.modules.tools")

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_PROBING = 30.0
_LAST_WAIT = 12.0
"""Longer than the supervisor itself takes to give up."""


class StartedProcess(Protocol):
    """A running program.

    Attributes:
        process: Our child: the program, or the supervisor above it.
        group: The id of the program and of its process group.
        end: A descriptor that becomes readable when the program has been started and when it ends; None if the system has none.
    """

    process: subprocess.Popen[bytes]
    group: int
    end: int | None

    @property
    def returncode(self) -> int | None:
        """The program's exit code, negative for a signal; None while it runs."""
        ...

    def wait_started(self) -> None:
        """Wait until the program is running.

        Raises:
            OSError: It could not be started.
        """
        ...

    def has_ended(self) -> bool:
        """Whether the program has ended."""
        ...

    def release(self) -> None:
        """Have a supervisor end everything that is left; its process group must not be signalled any more."""
        ...

    def close(self) -> None:
        """Release it and reap our child."""
        ...


class DirectProcess:
    """A program that is our child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.group = process.pid
        self.end: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            self.end = os.pidfd_open(process.pid)

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it is reaped."""
        return self.process.returncode

    def wait_started(self) -> None:
        """It is running."""

    def has_ended(self) -> bool:
        """Whether it has ended; it is left unreaped where that can be asked for, see `ProcessTree`."""
        return process_tree.has_ended(self.process)

    def release(self) -> None:
        """There is no supervisor."""

    def close(self) -> None:
        """Reap it."""
        if self.end is not None:
            os.close(self.end)
            self.end = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WAIT)


class SupervisedProcess:
    """A program that is a child of the supervisor.

    Args:
        process: The supervisor.
        status: The pipe on which it reports.
        control: The pipe whose end makes it end everything.
    """

    def __init__(self, process: subprocess.Popen[bytes], status: int, control: int) -> None:
        self.process = process
        self.group = 0
        self.end: int | None = status
        self._control: int | None = control
        self._lines = b""
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """The program's exit code, once it has ended."""
        return self._returncode

    def wait_started(self) -> None:
        """Wait until the program is running.

        Raises:
            OSError: It could not be started.
        """
        word, *rest = self._next_line().split(" ", 2)
        if word == "pid":
            self.group = int(rest[0])
        elif word == "error":
            raise OSError(int(rest[0]), rest[1])
        else:
            raise OSError(0, "the supervisor of the command did not start")

    def _next_line(self) -> str:
        """The supervisor's next line; empty if it has ended."""
        assert self.end is not None
        while b"\n" not in self._lines:
            data = os.read(self.end, 4096)
            if not data:
                return ""
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def has_ended(self) -> bool:
        """Whether the program has ended."""
        if self._returncode is None and self.end is not None and (self._lines or _is_readable(self.end)):
            word, _, rest = self._next_line().partition(" ")
            if word == "error":
                raise OSError(int(rest.partition(" ")[0]), rest.partition(" ")[2])
            self._returncode = int(rest) if word == "status" else -9  # a command that kills the supervisor ends itself
        return self._returncode is not None

    def release(self) -> None:
        """Have the supervisor end everything that is left."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def close(self) -> None:
        """Let the supervisor end what is left, and reap it."""
        self.release()
        if self.end is None:
            return
        try:
            self.process.wait(_LAST_WAIT)
        except subprocess.TimeoutExpired:
            logger.warning("the supervisor %d of a command does not end, and is killed", self.process.pid)
            self.process.kill()
            self.process.wait()
        os.close(self.end)
        self.end = None


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def start(
    arguments: Sequence[str], *, directory: str, environment: Mapping[str, str], confinement: Mapping[str, Any] | None
) -> StartedProcess:
    """Start a command with pipes for its output, and wait until it is running.

    Args:
        arguments: The program, by its absolute path, and its arguments.
        directory: Where it runs.
        environment: All it gets to see.
        confinement: What the supervisor applies before the program starts; None for no supervisor.

    Raises:
        OSError: It could not be started.
    """
    started = launch(arguments, directory=directory, environment=environment, confinement=confinement)
    try:
        started.wait_started()
    except OSError:
        with started.process:  # closes its pipes
            started.close()
        raise
    return started


def launch(
    arguments: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    confinement: Mapping[str, Any] | None,
    stdin: int = subprocess.DEVNULL,
) -> StartedProcess:
    """Start a program as `start` does, but do not wait until it is running.

    Raises:
        OSError: It could not be started; a program below the supervisor may report that later.
    """
    options: dict[str, Any] = {
        "stdin": stdin,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "bufsize": 0,
        "cwd": directory,
        "env": environment,
        "start_new_session": True,
    }
    if confinement is None:
        return DirectProcess(subprocess.Popen(arguments, **options))
    status, status_of_supervisor = os.pipe()
    control_of_supervisor, control = os.pipe()
    ours, theirs = (status, control), (status_of_supervisor, control_of_supervisor)
    specification = marshal.dumps(dict(confinement)).hex()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _SUPERVISOR, *map(str, theirs), specification, *arguments],
            pass_fds=theirs,
            **options,
        )
    except BaseException:
        for descriptor in ours:
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return SupervisedProcess(process, status, control)


def can_supervise() -> bool:
    """Whether the supervisor works here: on Linux, with an interpreter that can start a second one."""
    return process_tree.HAS_PROC and _supervisor_starts()


@functools.cache  # it starts a program, and the answer does not change
def _supervisor_starts() -> bool:
    if not sys.platform.startswith("linux") or not sys.executable or getattr(sys, "frozen", False):
        return False
    try:
        shell = start(["/bin/sh", "-c", "exit 7"], directory="/", environment={"PATH": os.defpath}, confinement={})
    except OSError:
        return False
    with shell.process:  # closes its pipes
        try:
            if shell.end is not None and not shell.has_ended():  # its end may have been read along with its start
                select.select([shell.end], [], [], _PROBING)
            return shell.has_ended() and shell.returncode == 7
        except OSError:
            return False
        finally:
            shell.close()
