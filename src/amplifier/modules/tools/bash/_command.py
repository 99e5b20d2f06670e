"""Runs one command: starts it, reads its output, and ends every process it started. Blocking; runs in a worker thread.

The thread alone owns the processes. Whatever happens to the task that waits for it, it continues until they are gone, so no
kind of cancellation can leave them behind.
"""

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


# ── capture ───────────────────────────────────────────────────────────────────────────────────────
# A bounded part of a stream: its beginning and its end. What is between is counted and dropped.


class Capture:
    """Keeps the first and the last bytes of a stream, half of `limit` each.

    Args:
        limit: Bytes kept; while a stream runs, up to half as many again are held.

    Attributes:
        total: Bytes seen.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._for_head = limit - limit // 2
        self._for_tail = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        free = self._for_head - len(self._head)
        self._head += data[:free]
        self._tail += data[free:]
        # Cut only now and then, so that a stream of small pieces does not move the tail for each.
        if len(self._tail) > 2 * self._for_tail:
            del self._tail[: len(self._tail) - self._for_tail]

    @property
    def is_cut(self) -> bool:
        """Whether anything was dropped."""
        return self.total > self._limit

    def text(self) -> str:
        r"""What was kept, as text for JSON; a byte that is no UTF-8 as ``\xff``, NUL as the symbol for it."""
        if not self.is_cut:
            return _decoded(self._head + self._tail)
        tail = self._tail[len(self._tail) - self._for_tail :]
        return f"{_decoded(self._head)}\n[… {self.total - self._limit} bytes dropped …]\n{_decoded(tail)}"


def _decoded(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\0", _NUL_SHOWN)


_CHUNK = 1 << 16


# ── output reader ─────────────────────────────────────────────────────────────────────────────────
# Reads the output of a command while waiting for its end, a request to stop and a deadline.


class OutputReader:
    """Reads the output of one process, in the thread that started it; closed before the process is reaped.

    Args:
        process: With pipes for both its streams.
        end: Becomes readable when the command has ended, which makes polling unnecessary; None if there is no such descriptor.
        captures: What is kept of them.
        stop: Wakes the reader.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        end: int | None,
        captures: tuple[Capture, Capture],
        stop: Stop,
    ) -> None:
        assert process.stdout is not None  # the command is started with pipes for both
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
        """Whether no process holds the other end of either stream any more."""
        return self._open_streams == 0

    def read_until(
        self,
        seconds: float,
        is_over: Callable[[], bool],
        *,
        look: float | None = None,
        obey_stop: bool = True,
    ) -> None:
        """Read until a condition holds, the time is up, or a stop is requested.

        Args:
            seconds: How long at most.
            is_over: The condition, checked after every event.
            look: Check the condition also at this interval in seconds, for what wakes no descriptor.
            obey_stop: False to continue after a request to stop.
        """
        until = time.monotonic() + seconds
        if look is None and self._end is None:
            look = _LOOK
        while not (obey_stop and self._stop.requested) and not is_over():
            left = until - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left if look is None else min(left, look)):
                self._take(key)

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fd == self._end:
            self._selector.unregister(key.fd)  # it has ended and stays so
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
        with self._lock:  # the number of a closed descriptor may belong to another file by now
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

_LINGER = 0.25
"""Seconds in which what the shell left running may finish its output: bash does not wait for ``>(tee log)``."""
_LAST_OUTPUT = 0.05
"""Seconds for a process that has closed its output to be gone; what is on its way out was not left running."""
_KILLING = 2.0
"""Seconds after which a process that does not even die of SIGKILL is given up and named in the log."""
_MOST_GRACE_WHEN_CANCELLED = 0.3
"""A cancelled call has to end within one second, killing included."""
_LOOK, _SHORT_LOOK = 0.02, 0.002
_COUNTING = 0.25
"""Seconds between two counts of its processes."""


@attrs.frozen(kw_only=True)
class Outcome:
    """How a command ended.

    Attributes:
        returncode: Its exit code, negative for a signal; None if its time was up.
        left_running: Processes that were still there when the shell had ended, and were ended.
        is_unstarted: Whether the sandbox failed before the command was started.
    """

    returncode: int | None
    stdout: Capture
    stderr: Capture
    left_running: int = 0
    is_unstarted: bool = False


def run_command(
    confined: Confined, directory: str, options: BashOptions, stop: Stop, seconds: float
) -> Outcome:
    """Run a command to its end, but at most so long.

    Args:
        confined: What is started, and how it is confined.
        directory: Where it runs.
        options: How much it may write and, in a sandbox, start, and how long its processes may take to end.
        stop: Ends it early.
        seconds: How long it may take.

    Raises:
        Stopped: It was ended because a stop was requested.
        ToolFailure: It could not be started.
    """
    stop.check()
    shell = _start(confined, directory)
    tree = ProcessTree(shell.process, shell.group)
    captures = (Capture(options.max_output_bytes), Capture(options.max_output_bytes))
    most = None if confined.explanation is None else options.max_processes
    in_time, left, too_much = False, 0, None
    next_count = time.monotonic() + _COUNTING

    def is_over() -> bool:
        nonlocal too_much, next_count
        if (
            most is not None and time.monotonic() >= next_count
        ):  # not at every piece of output: it takes milliseconds
            next_count = time.monotonic() + _COUNTING
            too_much = _too_much(tree.members(), options)
        return too_much is not None or shell.has_ended()

    try:
        with contextlib.closing(OutputReader(shell.process, shell.news, captures, stop)) as reader:
            reader.read_until(seconds, is_over, look=None if most is None else _COUNTING)
            if too_much is not None:  # at once: every moment it takes more
                raise ToolFailure(*too_much)
            in_time = shell.has_ended()
            if in_time:
                reader.read_until(_LINGER, lambda: reader.is_at_end)
                reader.read_until(_LAST_OUTPUT, lambda: not tree.members(), look=_SHORT_LOOK)
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


def _too_much(members: list[int], options: BashOptions) -> tuple[str, str] | None:
    """Return the kind and the text of a failure if the processes of a command take more than they may."""
    if len(members) > options.max_processes:
        return (
            "TooManyProcesses",
            f"more than {options.max_processes} processes at a time; all of them were ended",
        )
    # The kernel's limit for a process is about its own memory. What it shares is not counted there.
    if any(_shared_memory(pid) > options.max_memory_mb << 20 for pid in members):
        return (
            "TooMuchMemory",
            f"a process shared more than {options.max_memory_mb} MiB of memory; all were ended",
        )
    return None


def _shared_memory(pid: int) -> int:
    """Return the bytes of memory without a file that a process can share with others; 0 if it is gone."""
    found = _SHARED.search(read_proc(f"/proc/{pid}/status", 4096))
    return 0 if found is None else int(found[1]) << 10


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
    """Send SIGTERM to all processes and read their output meanwhile; return how many there were."""
    found = set(tree.send(signal.SIGTERM))
    left = len(found - tree.wrappers() if is_wrapped else found)
    if found:
        grace = min(grace, _MOST_GRACE_WHEN_CANCELLED) if stop.requested else grace
        reader.read_until(grace, lambda: not tree.members(), look=_LOOK, obey_stop=False)
        # Their last output may not be read yet.
        reader.read_until(_LAST_OUTPUT, lambda: reader.is_at_end, obey_stop=False)
    return left


def _kill(tree: ProcessTree, shell: StartedProcess) -> None:
    """Kill what is left, and wait until it is gone."""
    give_up = time.monotonic() + _KILLING
    while left := tree.send(signal.SIGKILL):
        if time.monotonic() > give_up:
            logger.warning(
                "tool bash: processes %s do not end although they were killed", left[:20]
            )
            break
        time.sleep(_SHORT_LOOK)
    shell.close()
