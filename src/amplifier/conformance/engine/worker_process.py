"""Starts the worker process, passes on the messages it sends, and ends it and everything it started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

from amplifier._programs import python_command
from amplifier.conformance.engine.job import Job
from amplifier.conformance.target.clock import machine_load
from amplifier.models import to_json

SILENCE_SECONDS = 20.0
"""After that long without a message the worker counts as dead."""
ABANDONED = 3
"""The exit code of a worker after a call of the module that could not be stopped."""
TOO_SLOW = 4
"""The exit code of a worker that took longer than it may."""
_MAX_LINE_BYTES = 50_000_000
_MIN_FREE_BYTES = 500_000_000

Receive = Callable[[dict[str, Any]], bool]
"""Takes one message of the worker; returns whether it was the last."""


@attrs.frozen(kw_only=True)
class WorkerExit:
    """How a worker ended.

    Attributes:
        finished: It sent its last message.
        was_silent: It sent nothing for so long that it was killed.
        returncode: Its exit code, if it ended by itself or by a signal.
        stderr: The end of what it wrote to standard error.
    """

    finished: bool
    was_silent: bool
    returncode: int | None
    stderr: str


async def run_worker(job: Job, receive: Receive) -> WorkerExit:
    """Run one worker process until its last message, its end, or a long silence."""
    with (
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryDirectory(prefix="conformance-", dir=_memory_directory()) as home,
    ):
        process = await anyio.open_process(
            python_command("-m", "amplifier.conformance.engine.worker"),
            stderr=stderr,
            env=_environment(home),
            start_new_session=True,
        )
        try:
            finished, was_silent = await _exchange(process, to_json(job).encode(), receive)
        finally:
            with anyio.CancelScope(shield=True):
                _kill_group(process)
                await process.aclose()
        stderr.seek(0)
        written = stderr.read().decode(errors="replace")[-2000:]
    return WorkerExit(finished=finished, was_silent=was_silent, returncode=process.returncode, stderr=written)


async def _exchange(process: anyio.abc.Process, job: bytes, receive: Receive) -> tuple[bool, bool]:
    """Send the job and pass on messages; returns whether the last one came, and whether none came for too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(job)
    await process.stdin.aclose()
    lines = BufferedByteReceiveStream(process.stdout)
    while True:
        with anyio.move_on_after(SILENCE_SECONDS * machine_load()) as silence:
            try:
                line = await lines.receive_until(b"\n", _MAX_LINE_BYTES)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return False, False
        if silence.cancelled_caught:
            return False, True
        if receive(json.loads(line)):
            return True, False


def _memory_directory() -> str | None:
    """A directory in memory, if there is one with enough free space: modules that sync their files wait less there."""
    place = Path("/dev/shm")
    try:
        free = shutil.disk_usage(place).free if os.access(place, os.W_OK | os.X_OK) else 0
    except OSError:
        return None
    return str(place) if free > _MIN_FREE_BYTES else None


def _cache_directory() -> Path:
    """Where Hypothesis keeps its tables of characters, which take a second to compute; not in the working directory."""
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given if given and Path(given).is_absolute() else Path.home() / ".cache", "amplifier")


def _environment(home: str) -> dict[str, str]:
    """The worker's environment variables: what running Python takes, and no credentials."""
    kept = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "HOME": home,
        "TMPDIR": home,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(_cache_directory() / "hypothesis"),
    }


def _kill_group(process: anyio.abc.Process) -> None:
    """Kill the worker and every process it started that stayed in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
