"""Reads the output of a command while waiting for its end, a request to stop and a deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable

from .._tool_base import Stop
from ._capture import Capture

_CHUNK = 1 << 16
_LOOK = 0.02


class OutputReader:
    """Reads the output of one process, in the thread that started it; closed before the process is reaped.

    Args:
        process: With pipes for both its streams.
        end: Becomes readable when the command has ended, which makes polling unnecessary; None if there is no such descriptor.
        captures: What is kept of them.
        stop: Wakes the reader.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], end: int | None, captures: tuple[Capture, Capture], stop: Stop
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
        self, seconds: float, is_over: Callable[[], bool], *, look: float | None = None, obey_stop: bool = True
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
