"""The processes that modules start: commands, MCP servers, and the programs that run a search.

Everything except the coroutines of `ServiceProcess` blocks.
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
_PROBE_SECONDS = 30.0
# This is longer than the supervisor itself takes to give up.
_REAP_SECONDS = 12.0
# A process that survives SIGKILL for this long is reported in the log and left behind.
_KILL_SECONDS = 2.0

# The dynamic linker may need these variables to start the program. The rest of the environment may
# contain secrets.
_LINKER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


# ── the processes of a command ────────────────────────────────────────────────────────────────────

# A command leads its own session and process group, so one signal reaches the group. Some processes
# leave the group (with ``setsid`` or a double fork, or as a daemon). The supervisor adopts
# processes that lose their parent, so ``/proc`` lists them among its descendants. Without a
# supervisor, only the processes in the group are known.


class ProcessTree:
    """All processes that one command started.

    Args:
        process: Our child, which is the shell or its supervisor. A supervisor isn't part of the
            command.
        group: The process group of the shell.
    """

    def __init__(self, process: subprocess.Popen[bytes], group: int) -> None:
        self._process = process
        self._leader = group
        self._is_supervised = group != process.pid
        self._seen: list[Process] = []

    def members(self) -> list[int]:
        """Return the ids of the living processes.

        Without a supervisor, the only id is that of the group, as long as the group has members.
        """
        if not self._is_supervised:
            # This reaps the shell, which would count as a member while it is a zombie.
            self._process.poll()
            return [self._leader] if send_to_group(self._leader, 0) else []
        self._seen = descendants(self._process.pid)
        return sorted(process.pid for process in self._seen if process.is_alive)

    def wrappers(self) -> set[int]:
        """Return the ids of the wrapper and of the first process in its namespaces.

        The wrapper leads the group. The ids are from the last call to `members`.
        """
        return {
            self._leader,
            *(process.pid for process in self._seen if process.parent == self._leader),
        }

    def send(self, number: signal.Signals) -> list[int]:
        """Signal all processes, and return the ids of the live ones."""
        members = self.members()
        # The group comes first. A signal to it is atomic, so no process can escape by forking.
        send_to_group(self._leader, number)
        for process in self._seen:
            if process.group != self._leader:
                send_signal(process, number)
        return members


# ── programs that modules start ───────────────────────────────────────────────────────────────────


class StartedProcess:
    """A running program, which is our child or a child of the supervisor.

    The supervisor exists only on Linux. It ends everything that the program started, even when this
    process is killed.

    A confinement can have these members:

    - ``limits``: numbers, keyed by their names in the module `resource`.
    - ``wrapper``: the command line of bubblewrap.
    - ``seccomp``: a filter program for the wrapper.
    - ``mounts``: paths that must be mounts inside the wrapper. Otherwise the program isn't started.
    - ``inner_limits``: limits that are applied inside the wrapper.

    Args:
        arguments: The absolute path of the program, and its arguments.
        directory: The working directory.
        environment: The complete environment.
        confinement: Restrictions that the supervisor applies before the program starts. None for no
            supervisor.
        stdin: As in `subprocess.Popen`.
        stderr: As in `subprocess.Popen`.
        bufsize: As in `subprocess.Popen`.

    Raises:
        OSError: The program could not be started. With a supervisor, `wait_started` or `has_ended`
            raises this instead.

    Attributes:
        process: Our child, which is the program or the supervisor above it.
        group: The id of the program and of its process group. 0 until a supervisor has reported it.
        is_unstarted: True if the wrapper failed, so that the program was never started.
        news: A descriptor that becomes readable when the program has started and when it ends. None
            if the system offers none.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: str,
        environment: Mapping[str, str],
        confinement: Mapping[str, object] | None,
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
        # The supervisor and bubblewrap run outside the sandbox, so the linker must not apply a
        # command's variables to them.
        options["env"] = {}
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            code, payload = (
                _in_memory(data, theirs)
                for data in (_supervisor_code(), marshal.dumps(specification))
            )
            self.news, status_of_supervisor = _pipe(ours, theirs)
            control_of_supervisor, self._control = _pipe(theirs, ours)
            passed = (code, payload, status_of_supervisor, control_of_supervisor)
            command = isolated_python_command(
                "-c", BOOT, str(code), "supervise", *map(str, passed[1:])
            )
            self.process = subprocess.Popen(command, pass_fds=passed, **options)
            ours.pop_all()

    @property
    def returncode(self) -> int | None:
        """The program's exit code, negative for a signal. None while it runs."""
        return self._returncode if self._is_supervised else self.process.returncode

    def wait_started(self) -> None:
        """Wait until the program is running.

        Raises:
            OSError: The program could not be started.
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
        """Return the supervisor's next line, or an empty text if it has ended."""
        assert self.news is not None
        while b"\n" not in self._lines:
            data = os.read(self.news, 4096)
            if not data:
                return ""
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def has_ended(self) -> bool:
        """Check whether the program has ended.

        Raises:
            OSError: The supervisor could not start it.
        """
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
            # A command that kills the supervisor ends as well.
            self._returncode = int(rest) if word in ("status", "unstarted") else -9
        return self._returncode is not None

    def release(self) -> None:
        """Let a supervisor end all remaining processes.

        The process group must not be signalled afterwards.
        """
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def close(self) -> None:
        """Release the process group and reap our child."""
        self.release()
        try:
            self.process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            if self._is_supervised:
                logger.warning(
                    "the supervisor %d of a command did not exit, so it is killed",
                    self.process.pid,
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
    confinement: Mapping[str, object] | None,
) -> StartedProcess:
    """Start a program, and wait until it is running.

    Raises:
        OSError: The program could not be started.
    """
    started = StartedProcess(
        arguments, directory=directory, environment=environment, confinement=confinement
    )
    try:
        started.wait_started()
    except OSError:
        # Exiting the block closes the pipes.
        with started.process:
            started.close()
        raise
    return started


@functools.cache
def _supervisor_code() -> bytes:
    # The file is read once, because commands may be able to change it later.
    return marshal.dumps(compile(_SUPERVISOR.read_bytes(), "supervisor", "exec", dont_inherit=True))


def _in_memory(data: bytes, closing: contextlib.ExitStack) -> int:
    """Return a descriptor from which a child can read data.

    On a command line, every user of the machine could read the data.
    """
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
    """Check whether the supervisor works: on Linux, if the interpreter can start a second one."""
    return HAS_PROC and _supervisor_starts()


@functools.cache
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
    # Exiting the block closes the pipes.
    with shell.process:
        try:
            # The line about its end may have been read together with the line about its start.
            if shell.news is not None and not shell.has_ended():
                select.select([shell.news], [], [], _PROBE_SECONDS)
            return shell.has_ended() and shell.returncode == 7
        except OSError:
            return False
        finally:
            shell.close()


class ServiceProcess(StartedProcess):
    """A program that serves the session through pipes. Only the event loop uses it.

    The program runs under the supervisor if that is available. Starting never awaits, so no
    cancellation can come between the start and the code that ends the program.

    Attributes:
        stdin: The descriptor of its input, which does not block.
        stdout: The descriptor of its output, which does not block.
        stderr: The descriptor of its error stream, which does not block.
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
        """Check whether the program has ended or was never started."""
        try:
            return super().has_ended()
        # The supervisor reports that the program could not be executed.
        except OSError as error:
            self._start_error = error
            return True

    def how_it_ended(self) -> str:
        """Return a phrase for messages, such as "ended with exit code 1"."""
        if self._start_error is not None:
            return f"cannot be started: {self._start_error.strerror}"
        if self.returncode is None:
            return "closed its standard output"
        if self.returncode < 0:
            return f"was killed by {signal_name(-self.returncode)}"
        return f"ended with exit code {self.returncode}"

    async def wait_until_running(self) -> None:
        """Wait until the supervisor has started the program.

        Raises:
            OSError: The program could not be started.
        """
        if self.group == 0 and self.news is not None:
            await anyio.wait_readable(self.news)
        # This does not block, because a line has arrived.
        self.wait_started()

    async def wait_for_death(self) -> None:
        """Wait until the program has ended."""
        while not self.has_ended():
            if self.news is None:
                await poll_until(self.has_ended)
            else:
                await anyio.wait_readable(self.news)

    async def end(self, grace: float = 0.0) -> None:
        """End the program and all its descendants in bounded time.

        First its input is closed, then SIGTERM and SIGKILL are sent. The caller shields this if
        necessary.

        Args:
            grace: Seconds before each of the two signals. 0 kills the program at once.
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
        with anyio.move_on_after(_KILL_SECONDS):
            await self._wait_if_running()
        if self.group and not self.has_ended():
            logger.warning(
                "process %d was killed but still exists: it hangs in a system call", self.group
            )
        self._is_released = True
        await anyio.to_thread.run_sync(self.close)

    def kill_rest(self) -> None:
        """Kill everything that the program left behind when it ended."""
        self._signal(signal.SIGKILL)
        self._is_released = True
        self.release()

    async def _wait_if_running(self) -> None:
        if self.group:
            await self.wait_for_death()

    def _signal(self, number: signal.Signals) -> None:
        # After the release, the group's id may belong to other processes.
        if self.group and not self._is_released:
            send_to_group(self.group, number)


class WorkerProcess(StartedProcess):
    """A program with pipes to its input and output that works for one thread.

    It has no supervisor, because one would take longer to start than the program. So the program
    must stay in its process group, and end when its input ends.

    Args:
        arguments: The absolute path of the program, and its arguments.
        stop: Kills the program when a stop is requested.
        directory: The working directory.

    Attributes:
        stdin: Its input.
        stdout: Its output.
    """

    def __init__(self, arguments: Sequence[str], stop: Stop, *, directory: str = "/") -> None:
        self._stop = stop
        self._lock = threading.Lock()
        environment = {
            name: safe_search_path(os.environ[name])
            for name in _LINKER_VARIABLES
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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        stop.add(self.kill)

    def kill(self) -> None:
        """Kill the program and its descendants, unless it has ended. Any thread may call this."""
        # The lock prevents the program from being reaped between the check and the signal.
        with self._lock:
            if self.process.poll() is None:
                send_to_group(self.group, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the program ends. Its output must have been read."""
        return self.process.wait()

    def close(self) -> None:
        """Kill the program, and wait until it has ended."""
        self.kill()
        self._stop.discard(self.kill)
        with self._lock:
            super().close()
        for pipe in (self.stdin, self.stdout):
            # Closing flushes input that the program did not read.
            with contextlib.suppress(OSError):
                pipe.close()


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    # Most real-time signals have no name.
    except ValueError:
        return f"signal {number}"
