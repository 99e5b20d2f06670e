"""Run one command: start it, read its output, and end every process that it started."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import attrs

from amplifier._internal.processes import read_proc

from ..._shared.failure import ToolFailure
from ..._shared.processes import ProcessTree, StartedProcess, start
from ..._shared.worker_threads import Stop
from ._confinement import Confined
from ._options import BashOptions

_NUL_SHOWN = "\N{SYMBOL FOR NULL}"


# This code blocks. It runs in a worker thread, which alone owns the processes. Whatever happens to
# the task that waits for the thread, the thread continues until the processes are gone. So no kind
# of cancellation leaves them behind.

# ── capture ───────────────────────────────────────────────────────────────────────────────────────


class Capture:
    """Keeps the first and the last bytes of a stream, half of ``limit`` each.

    Args:
        limit: Maximum number of bytes that are kept. While the stream runs, up to half as many
            again are held.

    Attributes:
        total: The number of bytes of the stream.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._for_head = limit - limit // 2
        self._for_tail = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self.total += len(data)
        free = self._for_head - len(self._head)
        self._head += data[:free]
        self._tail += data[free:]
        # The tail is cut only now and then, so that it isn't moved for each of many small pieces.
        if len(self._tail) > 2 * self._for_tail:
            del self._tail[: len(self._tail) - self._for_tail]

    @property
    def is_cut(self) -> bool:
        """True if bytes were dropped."""
        return self.total > self._limit

    def text(self) -> str:
        r"""Return the bytes as text for JSON.

        A byte that isn't UTF-8 becomes ``\xff``, and NUL the symbol for it.
        """
        if not self.is_cut:
            return _decoded(self._head + self._tail)
        tail = self._tail[len(self._tail) - self._for_tail :]
        note = f"[… {self.total - self._limit} bytes dropped …]"
        return f"{_decoded(self._head)}\n{note}\n{_decoded(tail)}"


def _decoded(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\0", _NUL_SHOWN)


_CHUNK = 1 << 16


# ── output reader ─────────────────────────────────────────────────────────────────────────────────


class OutputReader:
    """Reads the output of one process until its end, a stop or a deadline.

    The reader is used in the thread that started the process, and closed before the process is
    reaped.

    Args:
        process: The process, with pipes for both streams.
        end: A descriptor that becomes readable when the command has ended. None if there is none,
            so that the reader has to poll.
        captures: The captures of the two streams.
        stop: Wakes the reader.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        end: int | None,
        captures: tuple[Capture, Capture],
        stop: Stop,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = (process.stdout, process.stderr)
        self._stop = stop
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        for pipe, capture in zip(self._pipes, captures, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, capture)
        self._open_streams = len(self._pipes)
        self._wakeup_read, self._wakeup_write = os.pipe()
        self._is_open = True
        self._selector.register(self._wakeup_read, selectors.EVENT_READ)
        self._end = end
        if end is not None:
            self._selector.register(end, selectors.EVENT_READ)
        stop.add(self._wake)

    @property
    def is_at_end(self) -> bool:
        """True if every process has closed both streams."""
        return self._open_streams == 0

    def read_until(
        self,
        seconds: float,
        is_over: Callable[[], bool],
        *,
        interval: float | None = None,
        obey_stop: bool = True,
    ) -> None:
        """Read until a condition holds, the time is up or a stop is requested.

        Args:
            seconds: Maximum time in seconds.
            is_over: The condition. It is checked after every event.
            interval: Seconds after which the condition is checked even without an event. None
                waits for an event, if there is one for the end of the command.
            obey_stop: Pass False to continue after a request to stop.
        """
        until = time.monotonic() + seconds
        if interval is None and self._end is None:
            interval = _POLL_SECONDS
        while not (obey_stop and self._stop.requested) and not is_over():
            left = until - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left if interval is None else min(left, interval)):
                self._take(key)

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fd == self._end:
            self._selector.unregister(key.fd)
        elif key.fd == self._wakeup_read:
            os.read(self._wakeup_read, 64)
        else:
            with contextlib.suppress(BlockingIOError):
                data = os.read(key.fd, _CHUNK)
                key.data.add(data)
                if not data:
                    self._selector.unregister(key.fd)
                    self._open_streams -= 1

    def _wake(self) -> None:
        # The number of a closed descriptor may belong to another file.
        with self._lock:
            if self._is_open:
                os.write(self._wakeup_write, b"!")

    def close(self) -> None:
        """Close the pipes."""
        self._stop.discard(self._wake)
        with self._lock:
            self._is_open = False
        self._selector.close()
        for descriptor in (self._wakeup_read, self._wakeup_write):
            os.close(descriptor)
        for pipe in self._pipes:
            pipe.close()


logger = logging.getLogger("amplifier.modules.tools")

_LINGER_SECONDS = 0.25
"""Seconds for background processes to finish their output. bash doesn't wait for ``>(tee log)``."""
_EXIT_SECONDS = 0.05
"""Seconds that a process may run after closing its output before it counts as left running."""
_KILL_SECONDS = 2.0
"""Seconds after which a process that survives SIGKILL is abandoned and logged."""
_MAX_GRACE_WHEN_CANCELLED = 0.3
"""Maximum grace of a cancelled call, which has to end within one second."""
_POLL_SECONDS, _SHORT_POLL_SECONDS = 0.02, 0.002
_COUNT_INTERVAL = 0.25
"""Seconds between two counts of the processes."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        returncode: The exit code, negative for a signal. None if the command ran out of time.
        stdout: The standard output.
        stderr: The standard error.
        left_running: The number of processes that were still running when the shell exited, and
            that were then ended.
        is_unstarted: True if the sandbox failed before the command was started.
    """

    returncode: int | None
    stdout: Capture
    stderr: Capture
    left_running: int = 0
    is_unstarted: bool = False


def run_command(
    confined: Confined, directory: str, options: BashOptions, stop: Stop, seconds: float
) -> Outcome:
    """Run a command to its end, or until its time is up.

    Args:
        confined: The command and its sandbox.
        directory: The folder that it runs in.
        options: The configuration.
        stop: Ends it early.
        seconds: Maximum time in seconds.

    Raises:
        Stopped: A stop was requested. The command has ended.
        ToolFailure: The command can't be started, or it used more processes or memory than allowed.
    """
    stop.check()
    shell = _start(confined, directory)
    tree = ProcessTree(shell.process, shell.group)
    captures = (Capture(options.max_output_bytes), Capture(options.max_output_bytes))
    is_counted = confined.explanation is not None
    in_time, left, excess = False, 0, None
    next_count = time.monotonic() + _COUNT_INTERVAL

    def is_over() -> bool:
        nonlocal excess, next_count
        # A count takes milliseconds, which is too long to count at every piece of output.
        if is_counted and time.monotonic() >= next_count:
            next_count = time.monotonic() + _COUNT_INTERVAL
            excess = _excess(tree.members(), options)
        return excess is not None or shell.has_ended()

    try:
        with contextlib.closing(OutputReader(shell.process, shell.news, captures, stop)) as reader:
            interval = _COUNT_INTERVAL if is_counted else None
            reader.read_until(seconds, is_over, interval=interval)
            if excess is not None:
                raise ToolFailure(*excess)
            in_time = shell.has_ended()
            if in_time:
                reader.read_until(_LINGER_SECONDS, lambda: reader.is_at_end)
                reader.read_until(
                    _EXIT_SECONDS, lambda: not tree.members(), interval=_SHORT_POLL_SECONDS
                )
            left = _end(
                tree,
                reader,
                options.kill_grace,
                stop,
                is_wrapped="wrapper" in (confined.supervision or {}),
            )
    finally:
        _kill(tree, shell)
    stop.check()
    return Outcome(
        returncode=shell.returncode if in_time else None,
        stdout=captures[0],
        stderr=captures[1],
        left_running=left if in_time else 0,
        is_unstarted=shell.is_unstarted,
    )


def _excess(members: list[int], options: BashOptions) -> tuple[str, str] | None:
    """Return the kind and the text of a failure if the processes of a command exceed a limit."""
    if len(members) > options.max_processes:
        return (
            "TooManyProcesses",
            f"more than {options.max_processes} processes at a time; all of them were ended",
        )
    # The kernel's limit for a process doesn't count shared memory.
    if any(_shared_memory(pid) > options.max_memory_mb << 20 for pid in members):
        return (
            "TooMuchMemory",
            f"a process shared more than {options.max_memory_mb} MiB of memory; all were ended",
        )
    return None


def _shared_memory(pid: int) -> int:
    """Return the bytes of a process's shared memory without a file. 0 if the process has ended."""
    match = _SHARED.search(read_proc(f"/proc/{pid}/status", 4096))
    return 0 if match is None else int(match[1]) << 10


_SHARED = re.compile(rb"^RssShmem:\s+(\d+) kB", re.MULTILINE)


def _start(confined: Confined, directory: str) -> StartedProcess:
    try:
        return start(
            confined.arguments,
            directory=directory,
            environment=confined.environment,
            confinement=confined.supervision,
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise ToolFailure(
                "TooLarge", "the command is longer than the system accepts; put it in a file"
            ) from None
        if error.filename == directory:
            raise ToolFailure(
                "NotFound", f"{error.filename}: the working directory cannot be entered"
            ) from None
        raise
    except UnicodeEncodeError as error:
        raise ToolFailure(
            "InvalidInput", f"command: lone surrogate at character {error.start}"
        ) from None


def _end(
    tree: ProcessTree, reader: OutputReader, grace: float, stop: Stop, *, is_wrapped: bool
) -> int:
    """Send SIGTERM to all processes and read their output meanwhile. Return their number."""
    members = set(tree.send(signal.SIGTERM))
    left = len(members - tree.wrappers() if is_wrapped else members)
    if members:
        grace = min(grace, _MAX_GRACE_WHEN_CANCELLED) if stop.requested else grace
        reader.read_until(
            grace, lambda: not tree.members(), interval=_POLL_SECONDS, obey_stop=False
        )
        # The processes may have written output that hasn't been read.
        reader.read_until(_EXIT_SECONDS, lambda: reader.is_at_end, obey_stop=False)
    return left


def _kill(tree: ProcessTree, shell: StartedProcess) -> None:
    """Kill the remaining processes and wait until they have ended."""
    deadline = time.monotonic() + _KILL_SECONDS
    while left := tree.send(signal.SIGKILL):
        if time.monotonic() > deadline:
            logger.warning(
                "tool bash: processes %s do not end although they were killed", left[:20]
            )
            break
        time.sleep(_SHORT_POLL_SECONDS)
    shell.close()
