"""Requests the tasks of a running command, also of one that hangs: SIGUSR1, and one file per process, ``<home>/running/<pid>.json``.

The process holds a lock on its file while it runs; only such a process is sent the signal, which would end any other. The first line names the
process. Who asks appends a line ``?``. On the signal C code appends the stack of the main thread, in case Python itself hangs, and Python appends the
task tree as one line of JSON; without a ``?`` it shows the tree where the command writes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs

from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.terminal.display import Display
from amplifier.errors import ModelError
from amplifier.models import from_json, to_json
from amplifier.tracing import TaskTree, tasks_on_signal

from .store import LAST, now

ANSWER_TIMEOUT = 5.0
"""Seconds a process gets to answer; one that runs Python at all needs milliseconds."""

_POLL = 0.02
_ASK = b"?\n"


@attrs.frozen(kw_only=True)
class RunningCommand:
    """A command that runs an agent at this moment."""

    pid: int
    session_id: str
    started: str
    backend: str


@contextmanager
def answer_task_requests(folder: Path, session_id: str, backend: str, display: Display) -> Iterator[None]:
    """Answer SIGUSR1 with the tasks of this process, and list it among the running commands, if ``folder`` can be written to."""
    running = RunningCommand(pid=os.getpid(), session_id=session_id, started=now(), backend=backend)
    file, answered = -1, 0

    def show(tree: TaskTree) -> None:
        nonlocal answered
        if file != -1 and _ASK in os.pread(file, 2**20, answered):
            os.write(file, to_json(tree).encode(errors="backslashreplace") + b"\n")
        else:
            try:
                display.show_immediately(str(tree))
            except RuntimeError:  # the signal came in the middle of a write to the same stream
                os.write(2, f"\r\n{tree}\r\n".encode(errors="backslashreplace"))
        answered = 0 if file == -1 else os.fstat(file).st_size

    with tasks_on_signal(signal.SIGUSR1, show), ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = stack.enter_context(_listed(folder / f"{running.pid}.json", running))
            stack.enter_context(main_thread_stack(file))
        yield


@contextmanager
def main_thread_stack(file: int) -> Iterator[None]:
    """Write the stack of the main thread on the signal, in C code, before Python handles it.

    Not those of other threads: they go on running meanwhile, and reading the stack of one that runs can crash the process.
    """
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)


@contextmanager
def _listed(path: Path, running: RunningCommand) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.write(file, json.dumps(attrs.asdict(running)).encode() + b"\n")
        yield file
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def running_commands(folder: Path) -> list[RunningCommand]:
    """The commands that run now, the latest first; files that a killed one has left behind are removed."""
    found: list[RunningCommand] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.glob("*.json")):
            running: RunningCommand | None = None
            with suppress(OSError, ModelError):
                text = path.read_text(encoding="utf-8", errors="backslashreplace")
                running = from_json(RunningCommand, text.partition("\n")[0]) if _is_held(path) else None
            if running is not None:
                found.append(running)
            else:
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda each: (each.started, each.pid), reverse=True)


def find_running(folder: Path, wanted: str) -> RunningCommand:
    """The command that a process id, a session id or the beginning of one, or ``last`` refers to.

    Raises:
        CommandError: There is none, or several.
    """
    running = running_commands(folder)
    if wanted == LAST and running:
        return running[0]
    found = [each for each in running if str(each.pid) == wanted or each.session_id == wanted]
    found = found or [each for each in running if wanted and each.session_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{each.pid} (session {each.session_id})" for each in found or running)
    if found:
        raise CommandError(f"{wanted!r} is the beginning of several session ids: {listed}; give the process id")
    here = f"running now: {listed}" if running else "nothing is running"
    raise CommandError(f"no `amplifier run` of yours is process or session {wanted!r}; {here}")


def request_tasks(folder: Path, running: RunningCommand) -> TaskTree:
    """Request the tasks of a running command.

    Raises:
        CommandError: It does not answer; the message has the stack of its main thread.
    """
    path, written = folder / f"{running.pid}.json", b""
    try:
        with path.open("r+b") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(_ASK)
        os.kill(running.pid, signal.SIGUSR1)
        give_up = time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < give_up:
            written = path.read_bytes()[start + len(_ASK) :]
            for line in written.splitlines(keepends=True):
                if line.startswith(b"{") and line.endswith(b"\n"):
                    return from_json(TaskTree, line.decode())
            if not _is_held(path):
                raise ProcessLookupError
            time.sleep(_POLL)
    except (FileNotFoundError, ProcessLookupError):
        raise CommandError(f"process {running.pid} has ended meanwhile", exit_code=Exit.FAILED) from None
    stack = written.decode(errors="backslashreplace").strip()
    what = (
        "it is inside a call that does not return to Python. Its main thread:\n"
        if stack
        else "it is stopped, or the system does not let it run"
    )
    raise CommandError(
        f"process {running.pid} does not answer within {ANSWER_TIMEOUT:g} s: {what}{stack}", exit_code=Exit.FAILED
    )


def _is_held(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
