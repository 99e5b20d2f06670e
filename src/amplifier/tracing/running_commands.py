"""The running commands of a user, and requests for their task trees."""

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

# Every process has a file ``<home>/running/<pid>.json``, whose first line describes it. The process
# locks the file while it runs. Only a process with such a lock gets the signal SIGUSR1, which would
# end any other. A request appends a line ``?`` and sends the signal, and the process appends its
# task tree as one line of JSON. If it gets the signal without a ``?``, it shows the tree where the
# command writes.

ASK = b"?\n"
# A process that can run Python at all answers within milliseconds.
ANSWER_TIMEOUT = 5.0

_POLL_SECONDS = 0.02


@attrs.frozen(kw_only=True)
class RunningCommand:
    """A command that is running an agent."""

    pid: int
    session_id: str
    started: str
    backend: str


@contextmanager
def answer_task_requests(
    folder: Path, session_id: str, backend: str, show_now: Callable[[str], None]
) -> Iterator[None]:
    """Answer SIGUSR1 with the tasks of this process, and list it among the running commands.

    Args:
        folder: Folder of the running commands. If it cannot be written, the process is not listed.
        session_id: Id of the session.
        backend: The event loop.
        show_now: Function that shows the tasks if there is no request in the file.
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
            # The signal may have interrupted a write to the same stream.
            try:
                show_now(str(tree))
            except RuntimeError:
                os.write(2, f"\r\n{tree}\r\n".encode(errors="backslashreplace"))
        answered = 0 if file == -1 else os.fstat(file).st_size

    with tasks_on_signal(signal.SIGUSR1, show), ExitStack() as stack:
        with suppress(OSError):
            make_folders(folder)
            path = folder / f"{running.pid}.json"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(attrs.asdict(running)).encode() + b"\n")
            file = descriptor
        yield


def running_commands(folder: Path) -> list[RunningCommand]:
    """Return the running commands, the latest first, and remove the files of killed ones."""
    commands: list[RunningCommand] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.glob("*.json")):
            running: RunningCommand | None = None
            with suppress(OSError, ModelError):
                text = path.read_text(encoding="utf-8", errors="backslashreplace")
                if is_locked(path):
                    running = from_json(RunningCommand, text.partition("\n")[0])
            if running is not None:
                commands.append(running)
            else:
                # The folder may be read-only.
                with suppress(OSError):
                    path.unlink()
    return sorted(commands, key=lambda command: (command.started, command.pid), reverse=True)


def request_tasks(folder: Path, running: RunningCommand) -> TaskTree:
    """Request the tasks of a running command.

    Raises:
        ProcessLookupError: The command has ended.
        TimeoutError: The command does not answer.
    """
    path = folder / f"{running.pid}.json"
    try:
        with path.open("r+b") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(ASK)
        os.kill(running.pid, signal.SIGUSR1)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < deadline:
            for line in path.read_bytes()[start:].splitlines(keepends=True):
                if line.startswith(b"{") and line.endswith(b"\n"):
                    return from_json(TaskTree, line.decode())
            if not is_locked(path):
                raise ProcessLookupError
            time.sleep(_POLL_SECONDS)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"process {running.pid} has ended by now") from None
    raise TimeoutError(
        f"process {running.pid} does not answer within {ANSWER_TIMEOUT:g} s: it is stopped, "
        "or in a call that does not return to Python"
    )
