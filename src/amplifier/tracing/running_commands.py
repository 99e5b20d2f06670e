"""Commands that run now, and their answers to who asks for their tasks: SIGUSR1, and one file per process, ``<home>/running/<pid>.json``.

The process holds a lock on its file while it runs; only such a process is sent the signal, which would end any other. The first line names the
process. Who asks appends a line ``?``, and on the signal the process appends its task tree as one line of JSON; without a ``?`` it shows the tree
where the command writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import attrs

from amplifier._internal.regular_files import make_folders
from amplifier.errors import ModelError
from amplifier.models import from_json, to_json
from amplifier.store.folders import is_locked

from ._tasks import TaskTree, tasks_on_signal

ASK = b"?\n"
ANSWER_TIMEOUT = 5.0
"""Seconds a process gets to answer; one that runs Python at all needs milliseconds."""

_POLL = 0.02


@attrs.frozen(kw_only=True)
class RunningCommand:
    """A command that runs an agent at this moment."""

    pid: int
    session_id: str
    started: str
    backend: str


@contextmanager
def answer_task_requests(
    folder: Path, session_id: str, backend: str, show_now: Callable[[str], None]
) -> Iterator[None]:
    """Answer SIGUSR1 with the tasks of this process, and list it among the running commands, if ``folder`` can be written to.

    Without a request in the file, ``show_now`` gets them.
    """
    running = RunningCommand(
        pid=os.getpid(),
        session_id=session_id,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=backend,
    )
    file, answered = -1, 0

    def show(tree: TaskTree) -> None:
        nonlocal answered
        if file != -1 and ASK in os.pread(file, 2**20, answered):
            os.write(file, to_json(tree).encode(errors="backslashreplace") + b"\n")
        else:
            try:
                show_now(str(tree))
            except RuntimeError:  # the signal came in the middle of a write to the same stream
                os.write(2, f"\r\n{tree}\r\n".encode(errors="backslashreplace"))
        answered = 0 if file == -1 else os.fstat(file).st_size

    with tasks_on_signal(signal.SIGUSR1, show), ExitStack() as stack:
        with suppress(OSError):
            make_folders(folder)
            path = folder / f"{running.pid}.json"
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, opened)
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(opened, 0)
            os.write(opened, json.dumps(attrs.asdict(running)).encode() + b"\n")
            file = opened
        yield


def running_commands(folder: Path) -> list[RunningCommand]:
    """The commands that run now, the latest first; files that a killed one has left behind are removed."""
    found: list[RunningCommand] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.glob("*.json")):
            running: RunningCommand | None = None
            with suppress(OSError, ModelError):
                text = path.read_text(encoding="utf-8", errors="backslashreplace")
                running = (
                    from_json(RunningCommand, text.partition("\n")[0]) if is_locked(path) else None
                )
            if running is not None:
                found.append(running)
            else:
                with suppress(OSError):  # the folder cannot be written to
                    path.unlink()
    return sorted(found, key=lambda each: (each.started, each.pid), reverse=True)


def request_tasks(folder: Path, running: RunningCommand) -> TaskTree:
    """Request the tasks of a running command.

    Raises:
        ProcessLookupError: It has ended.
        TimeoutError: It does not answer.
    """
    path = folder / f"{running.pid}.json"
    try:
        with path.open("r+b") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(ASK)
        os.kill(running.pid, signal.SIGUSR1)
        give_up = time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < give_up:
            for line in path.read_bytes()[start:].splitlines(keepends=True):
                if line.startswith(b"{") and line.endswith(b"\n"):
                    return from_json(TaskTree, line.decode())
            if not is_locked(path):
                raise ProcessLookupError
            time.sleep(_POLL)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"process {running.pid} has ended meanwhile") from None
    raise TimeoutError(
        f"process {running.pid} does not answer within {ANSWER_TIMEOUT:g} s: it is stopped, or in a call that does not return to Python"
    )
