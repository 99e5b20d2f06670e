"""The processes that modules start: commands, MCP servers, the programs of a search.

A program is started directly, or on Linux below the supervisor, which sees every process that the program starts and ends
them all, also when this process is killed. `ServiceProcess` is one that the event loop waits for, `WorkerProcess` one that
belongs to the work of a thread. Both have ended when they are closed, with their process group or everything that the
supervisor sees.

`ProcessTree` is every process that one command started. A command leads a session and process group of its own, which one
signal reaches. Some processes leave it (``setsid``, a double fork, a daemon). Below the supervisor, which adopts what loses its
parent, they are found in ``/proc`` by descent. Without a supervisor only the group is known.

Everything but the coroutines of `ServiceProcess` blocks.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread

from amplifier._internal.processes import HAS_PROC, Process, descendants, send_signal, send_to_group
from amplifier._internal.programs import isolated_python, isolated_python_command, safe_search_path
from amplifier._internal.supervisor import BOOT

from .worker_threads import Stop, poll_until

logger = logging.getLogger("amplifier.modules.tools")

_SUPERVISOR = Path(__file__).parents[2] / "_internal" / "supervisor.py"
_PROBING = 30.0
_LAST_WAIT = 12.0
"""Longer than the supervisor itself takes to give up."""
_KILLING = 2.0
"""Seconds after which a process that does not even die of SIGKILL is given up and named in the log."""

# What a dynamic linker may need to start the program at all; the rest of the environment may hold secrets.
_FOR_THE_LINKER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


# ── the processes of a command ─────────────────────────────────────────────────────────────────────


class ProcessTree:
    """The processes of one command.

    Args:
        process: Our child: the shell, or its supervisor, which itself is not part of the command.
        group: The process group of the shell; the child's own without a supervisor.
    """

    def __init__(self, process: subprocess.Popen[bytes], group: int) -> None:
        self._process = process
        self._leader = group
        self._is_supervised = group != process.pid
        self._seen: list[Process] = []

    def members(self) -> list[int]:
        """Ids of those that are alive. Without a supervisor it is the group's alone, for as long as it has members."""
        if not self._is_supervised:
            self._process.poll()  # a zombie shell would count as a member
            return [self._leader] if send_to_group(self._leader, 0) else []
        self._seen = descendants(self._process.pid)
        return sorted(process.pid for process in self._seen if process.is_alive)

    def wrappers(self) -> set[int]:
        """Ids of the wrapper that leads the group, and of the first process in its namespaces, as of the last look."""
        return {
            self._leader,
            *(process.pid for process in self._seen if process.parent == self._leader),
        }

    def send(self, number: signal.Signals) -> list[int]:
        """Signal them all and return who was there to be signalled."""
        members = self.members()
        # First the group, in one step, in which no process can escape by forking.
        send_to_group(self._leader, number)
        for process in self._seen:
            if process.group != self._leader:
                send_signal(process, number)
        return members


# ── programs that modules start ────────────────────────────────────────────────────────────────────


class StartedProcess:
    """A running program that is our child, or a child of the supervisor, which ends everything that the program started.

    A confinement can have these members: ``limits`` (names of the module `resource` and numbers), ``wrapper`` (the command line
    of bubblewrap) and with it ``seccomp`` (a filter program), ``mounts`` (paths that have to be mounts inside of it, or the
    program is not started) and ``inner_limits``, which are applied inside of the wrapper.

    Args:
        arguments: The program, by its absolute path, and its arguments.
        directory: Where it runs.
        environment: All it gets to see.
        confinement: What the supervisor applies before the program starts; None for no supervisor.
        stdin: As of `subprocess.Popen`, also the two below.

    Raises:
        OSError: It could not be started; a program below the supervisor reports that in `wait_started` or `has_ended`.

    Attributes:
        process: Our child: the program, or the supervisor above it.
        group: The id of the program and of its process group; 0 before a supervisor has reported it.
        is_unstarted: Whether the wrapper of the program failed, and the program was never started.
        news: A descriptor that becomes readable when the program has been started and when it ends; None if the system has none.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: str,
        environment: Mapping[str, str],
        confinement: Mapping[str, Any] | None,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        bufsize: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "stdin": stdin,
            "stdout": subprocess.PIPE,
            "stderr": stderr,
            "bufsize": bufsize,
        }
        options |= {"cwd": directory, "start_new_session": True}
        self.is_unstarted: bool = False
        self.process: subprocess.Popen[bytes]
        self.group: int
        self.news: int | None = None
        self._is_supervised = confinement is not None
        self._control: int | None = None
        self._lines = b""
        self._returncode: int | None = None
        if confinement is None:
            self.process = subprocess.Popen(arguments, env=environment, **options)
            self.group = self.process.pid
            with contextlib.suppress(AttributeError, OSError):
                self.news = os.pidfd_open(self.process.pid)
            return
        self.group = 0
        specification = {
            **confinement,
            "arguments": [os.fsencode(argument) for argument in arguments],
            "environment": {
                os.fsencode(name): os.fsencode(value) for name, value in environment.items()
            },
        }
        # The supervisor and bubblewrap run outside of the sandbox: a command's variables for the linker are not for them.
        options["env"] = {}
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            code, given = (
                _in_memory(data, theirs)
                for data in (_supervisor_code(), marshal.dumps(specification))
            )
            self.news, status_of_supervisor = _pipe(ours, theirs)
            control_of_supervisor, self._control = _pipe(theirs, ours)
            passed = (code, given, status_of_supervisor, control_of_supervisor)
            command = isolated_python_command(
                "-c", BOOT, str(code), "supervise", *map(str, passed[1:])
            )
            self.process = subprocess.Popen(command, pass_fds=passed, **options)
            ours.pop_all()

    @property
    def returncode(self) -> int | None:
        """The program's exit code, negative for a signal; None while it runs."""
        return self._returncode if self._is_supervised else self.process.returncode

    def wait_started(self) -> None:
        """Wait until the program is running.

        Raises:
            OSError: It could not be started.
        """
        if not self._is_supervised:
            return
        word, *rest = self._next_line().split(" ", 2)
        if word == "pid":
            self.group = int(rest[0])
        elif word == "error":
            raise OSError(int(rest[0]), rest[1])
        else:
            raise OSError(0, "the supervisor of the command did not start")

    def _next_line(self) -> str:
        """The supervisor's next line; empty if it has ended."""
        assert self.news is not None
        while b"\n" not in self._lines:
            data = os.read(self.news, 4096)
            if not data:
                return ""
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def has_ended(self) -> bool:
        """Whether the program has ended."""
        if not self._is_supervised:
            return self.process.poll() is not None
        if (
            self._returncode is None
            and self.news is not None
            and (self._lines or _is_readable(self.news))
        ):
            word, _, rest = self._next_line().partition(" ")
            if word == "error":
                raise OSError(int(rest.partition(" ")[0]), rest.partition(" ")[2])
            self.is_unstarted = word == "unstarted"
            self._returncode = (
                int(rest) if word in ("status", "unstarted") else -9
            )  # a command that kills the supervisor ends itself
        return self._returncode is not None

    def release(self) -> None:
        """Have a supervisor end everything that is left; its process group must not be signalled any more."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def close(self) -> None:
        """Release it and reap our child."""
        self.release()
        try:
            self.process.wait(_LAST_WAIT)
        except subprocess.TimeoutExpired:
            if self._is_supervised:
                logger.warning(
                    "the supervisor %d of a command does not end, and is killed", self.process.pid
                )
                self.process.kill()
                self.process.wait()
        if self.news is not None:
            os.close(self.news)
            self.news = None


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def start(
    arguments: Sequence[str],
    *,
    directory: str,
    environment: Mapping[str, str],
    confinement: Mapping[str, Any] | None,
) -> StartedProcess:
    """Start a program, and wait until it is running.

    Raises:
        OSError: It could not be started.
    """
    started = StartedProcess(
        arguments, directory=directory, environment=environment, confinement=confinement
    )
    try:
        started.wait_started()
    except OSError:
        with started.process:  # closes its pipes
            started.close()
        raise
    return started


@functools.cache  # read once: a command may change the file, if it lies where commands can write
def _supervisor_code() -> bytes:
    return marshal.dumps(compile(_SUPERVISOR.read_bytes(), "supervisor", "exec", dont_inherit=True))


def _in_memory(data: bytes, closing: contextlib.ExitStack) -> int:
    """A descriptor to read from: not in the command line, which every user of the machine can read."""
    descriptor = os.memfd_create("amplifier")
    closing.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def _pipe(of_reader: contextlib.ExitStack, of_writer: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    of_reader.callback(os.close, reader)
    of_writer.callback(os.close, writer)
    return reader, writer


def can_supervise() -> bool:
    """Whether the supervisor works here: on Linux, with an interpreter that can start a second one."""
    return HAS_PROC and _supervisor_starts()


@functools.cache  # it starts a program, and the answer does not change
def _supervisor_starts() -> bool:
    if (
        not sys.platform.startswith("linux")
        or not isolated_python()
        or getattr(sys, "frozen", False)
    ):
        return False
    try:
        shell = start(
            ["/bin/sh", "-c", "exit 7"],
            directory="/",
            environment={"PATH": os.defpath},
            confinement={},
        )
    except OSError:
        return False
    with shell.process:  # closes its pipes
        try:
            if (
                shell.news is not None and not shell.has_ended()
            ):  # its end may have been read along with its start
                select.select([shell.news], [], [], _PROBING)
            return shell.has_ended() and shell.returncode == 7
        except OSError:
            return False
        finally:
            shell.close()


class ServiceProcess(StartedProcess):
    """A program with pipes to all three streams, which serves the session until it is ended; for the event loop.

    It runs below the supervisor where there is one. Starting never awaits, so no cancellation comes between the start and the
    code that ends it.

    Attributes:
        stdin, stdout, stderr: The numbers of our ends of its streams, which do not block.
    """

    def __init__(
        self, arguments: Sequence[str], *, directory: str, environment: Mapping[str, str]
    ) -> None:
        super().__init__(
            arguments,
            directory=directory,
            environment=environment,
            confinement={} if can_supervise() else None,
            stdin=subprocess.PIPE,
        )
        self._start_error: OSError | None = None
        self._is_released = False
        child = self.process
        self._pipes = [
            pipe for pipe in (child.stdin, child.stdout, child.stderr) if pipe is not None
        ]
        self.stdin: int
        self.stdout: int
        self.stderr: int
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)

    def has_ended(self) -> bool:
        """Whether it has ended, or was never started."""
        try:
            return super().has_ended()
        except OSError as error:  # the supervisor reports that the program could not be executed
            self._start_error = error
            return True

    def how_it_ended(self) -> str:
        """How it ended, for messages."""
        if self._start_error is not None:
            return f"cannot be started: {self._start_error.strerror}"
        if self.returncode is None:
            return "closed its standard output"
        if self.returncode < 0:
            return f"was killed by {signal_name(-self.returncode)}"
        return f"ended with exit code {self.returncode}"

    async def wait_until_running(self) -> None:
        """Wait until the supervisor has started it.

        Raises:
            OSError: It cannot be started.
        """
        if self.group == 0 and self.news is not None:
            await anyio.wait_readable(self.news)
        self.wait_started()  # does not block: a line is there

    async def wait_for_death(self) -> None:
        """Wait until it has ended."""
        while not self.has_ended():
            if self.news is None:
                await poll_until(self.has_ended)
            else:
                await anyio.wait_readable(self.news)

    async def end(self, grace: float = 0.0) -> None:
        """End it and all it started: close its input, then SIGTERM, then SIGKILL. Bounded, but not shielded.

        Args:
            grace: Seconds before each of the two signals; at 0 it is killed at once.
        """
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        if grace:
            with anyio.move_on_after(grace):
                await self._wait_if_running()
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(grace):
                await self._wait_if_running()
        self._signal(signal.SIGKILL)
        with anyio.move_on_after(_KILLING):
            await self._wait_if_running()
        if self.group and not self.has_ended():
            logger.warning(
                "process %d was killed and is still there; it hangs in a system call", self.group
            )
        self._is_released = True
        await anyio.to_thread.run_sync(self.close)

    def kill_rest(self) -> None:
        """Kill everything that it has left behind, after it has ended."""
        self._signal(signal.SIGKILL)
        self._is_released = True
        self.release()

    async def _wait_if_running(self) -> None:
        if self.group:
            await self.wait_for_death()

    def _signal(self, number: signal.Signals) -> None:
        if self.group and not self._is_released:  # once it is released, the id may belong to others
            send_to_group(self.group, number)


class WorkerProcess(StartedProcess):
    """A program with pipes to its input and output, for the work of one thread; killed from any.

    It has no supervisor, which would take longer to start than the program: it must neither leave its process group nor live on
    when its input ends.

    Args:
        arguments: The program, by its absolute path, and its arguments.
        stop: Kills it when requested.
        directory: Where it runs.
    """

    def __init__(self, arguments: Sequence[str], stop: Stop, *, directory: str = "/") -> None:
        self._stop = stop
        self._lock = threading.Lock()
        environment = {
            name: safe_search_path(os.environ[name])
            for name in _FOR_THE_LINKER
            if name in os.environ
        }
        super().__init__(
            arguments,
            directory=directory,
            environment=environment,
            confinement=None,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=-1,
        )
        assert self.process.stdin is not None  # asked for above
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        stop.add(self.kill)

    def kill(self) -> None:
        """End it and all it started; nothing happens if it has ended."""
        with self._lock:  # so that it is not reaped between the check and the signal
            if self.process.poll() is None:
                send_to_group(self.group, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it has ended by itself; its output must have been read."""
        return self.process.wait()

    def close(self) -> None:
        """Kill it, and wait until it has ended."""
        self.kill()
        self._stop.discard(self.kill)
        with self._lock:
            super().close()
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):  # input it did not live to read
                pipe.close()


def signal_name(number: int) -> str:
    """The name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
