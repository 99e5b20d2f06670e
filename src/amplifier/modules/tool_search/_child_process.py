"""A child process that does not outlive the work it was started for.

Started and used in a worker thread, killed from any. It leads a process group of its own, and the whole group is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from .._tool_base import Stop

# What a dynamic linker may need to start the program at all; the rest of the environment may hold secrets.
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class Child:
    """A process with pipes to its input and output.

    Args:
        command: The program, by absolute path, and its arguments.
        stop: Kills it when requested.
        cwd: Where it runs.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], stop: Stop, *, cwd: str = "/") -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            start_new_session=True,
        )
        assert self._process.stdin is not None  # asked for above
        assert self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        stop.add(self.kill)

    def kill(self) -> None:
        """End it and all it started; nothing happens if it has ended."""
        with self._lock:  # so that it is not reaped between the check and the signal
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it has ended by itself; its output must have been read."""
        return self._process.wait()

    def close(self) -> None:
        """Kill it, and wait until it has ended."""
        self.kill()
        self._stop.discard(self.kill)
        with self._lock:
            self._process.wait()
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):  # input it did not live to read
                pipe.close()
