"""Requests the tasks of a running command, also of one that hangs.

    <home>/running/<pid>.json      process, session and start time; the process holds a lock on it while it runs
    <home>/running/<pid>.ask       exists if the answer is to go to a file instead of the terminal
    <home>/running/<pid>.tasks     that answer
    <home>/running/<pid>.stacks    the stack of its main thread, written by C code in case Python itself hangs

The request is the signal SIGUSR1. It would end a process that does not handle it, so it is only sent to one that holds its lock.
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
from amplifier.cli.core.private_file import replace_file
from amplifier.cli.terminal.display import Display
from amplifier.errors import ModelError
from amplifier.models import from_json, to_json
from amplifier.observability import TaskTree, tasks_on_signal

from .store import LAST, now

__all__ = ["RunningCommand", "answer_task_requests", "find_running", "request_tasks", "running_commands"]

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


# ── answer_task_requests ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def answer_task_requests(folder: Path, session_id: str, backend: str, display: Display) -> Iterator[None]:
    """Answer SIGUSR1 with the tasks of this process, and list this process among the running commands.

    Args:
        folder: The folder of running commands; a command runs without being listed if the folder cannot be written to.
        session_id: The running session.
        backend: The event loop it runs on.
        display: Shows the answer unless it was requested in a file.
    """
    own = folder / str(os.getpid())

    def show(tree: TaskTree) -> None:
        try:
            own.with_suffix(".ask").unlink()
        except OSError:  # not requested in a file
            _show_immediately(display, str(tree))
        else:
            replace_file(own.with_suffix(".tasks"), to_json(tree).encode(errors="backslashreplace"))

    with tasks_on_signal(signal.SIGUSR1, show), ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(main_thread_stack(own.with_suffix(".stacks")))
            running = RunningCommand(pid=os.getpid(), session_id=session_id, started=now(), backend=backend)
            stack.enter_context(_registered(own.with_suffix(".json"), running))
        yield


def _show_immediately(display: Display, text: str) -> None:
    try:
        display.show_immediately(text)
    except RuntimeError:  # the signal came in the middle of a write to the same stream
        os.write(2, f"\r\n{text}\r\n".encode(errors="backslashreplace"))


@contextmanager
def main_thread_stack(path: Path) -> Iterator[None]:
    """Write the stack of the main thread on the signal, in C code, before Python handles it.

    Not those of other threads: they go on running meanwhile, and reading the stack of one that runs can crash the process.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=False, chain=True)
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        os.close(descriptor)
        path.unlink(missing_ok=True)


@contextmanager
def _registered(path: Path, running: RunningCommand) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(attrs.asdict(running)).encode())
        yield
    finally:
        _remove_files(path)
        os.close(descriptor)


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


def running_commands(folder: Path) -> list[RunningCommand]:
    """The commands that run now, the latest first; files that a killed one has left behind are removed."""
    found: list[RunningCommand] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.glob("*.json")):
            running = _read(path)
            if running is not None and _is_held(path):
                found.append(running)
            else:
                _remove_files(path)
    return sorted(found, key=lambda each: (each.started, each.pid), reverse=True)


def _remove_files(path: Path) -> None:
    """Remove all files of one process."""
    for file in path.parent.glob(f"{path.stem}.*"):
        file.unlink(missing_ok=True)


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
    own = folder / str(running.pid)
    answer, stacks = own.with_suffix(".tasks"), own.with_suffix(".stacks")
    answer.unlink(missing_ok=True)
    with suppress(OSError):
        os.truncate(stacks, 0)
    own.with_suffix(".ask").touch(mode=0o600)
    gone = CommandError(f"process {running.pid} has ended meanwhile", exit_code=Exit.FAILED)
    try:
        os.kill(running.pid, signal.SIGUSR1)
    except ProcessLookupError:
        raise gone from None
    give_up = time.monotonic() + ANSWER_TIMEOUT
    while time.monotonic() < give_up:
        with suppress(FileNotFoundError):
            text = answer.read_text(encoding="utf-8")
            answer.unlink(missing_ok=True)
            return from_json(TaskTree, text)
        if not _is_held(own.with_suffix(".json")):
            raise gone
        time.sleep(_POLL)
    own.with_suffix(".ask").unlink(missing_ok=True)
    raise CommandError(_no_answer(running, stacks), exit_code=Exit.FAILED)


def _no_answer(running: RunningCommand, stacks: Path) -> str:
    stack = ""
    with suppress(OSError):
        stack = stacks.read_text(encoding="utf-8", errors="backslashreplace").strip()
    start = f"process {running.pid} does not answer within {ANSWER_TIMEOUT:g} s: "
    if not stack:
        return start + "it is stopped, or the system does not let it run"
    return f"{start}it is inside a call that does not return to Python. Its main thread:\n{stack}"


def _read(path: Path) -> RunningCommand | None:
    try:
        return from_json(RunningCommand, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ModelError):
        return None


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
