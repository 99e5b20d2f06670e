"""Asking a running command what it is doing, also one that hangs.

    <home>/running/<pid>.json      who runs, and since when; locked by it for as long as it does
    <home>/running/<pid>.ask       somebody else wants an answer in a file instead of on the terminal
    <home>/running/<pid>.tasks     that answer
    <home>/running/<pid>.stacks    the stacks of its threads, written without Python's help when even that hangs

The question is the signal SIGUSR1. It would end a process that does not listen, so it is only sent to one that holds its lock.

Above: `_request`, which answers, and `_doctor`, which asks. Below: `amplifier.observability`.
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
from amplifier.observability import TaskTree, tasks_on_signal

from .store import LAST, now

__all__ = ["RunningCommand", "answer_task_requests", "find_running", "request_tasks", "running_commands"]

PATIENCE = 5.0
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
    """Answer SIGUSR1 with the tasks of this process, and be found by those who want to ask.

    Args:
        folder: Where running commands are found; a state folder that cannot be written to is no reason not to run.
        session_id: Of the session that runs.
        backend: It runs on.
        display: Where the answer goes when nobody asked for it in a file.
    """
    own = folder / str(os.getpid())

    def show(tree: TaskTree) -> None:
        try:
            own.with_suffix(".ask").unlink()
        except OSError:  # nobody did
            _show_immediately(display, str(tree))
        else:
            _write_whole(own.with_suffix(".tasks"), to_json(tree))

    with tasks_on_signal(signal.SIGUSR1, show), ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(_stacks_in(own.with_suffix(".stacks")))
            running = RunningCommand(pid=os.getpid(), session_id=session_id, started=now(), backend=backend)
            stack.enter_context(_present(own.with_suffix(".json"), running))
        yield


def _show_immediately(display: Display, text: str) -> None:
    try:
        display.show_immediately(text)
    except RuntimeError:  # the signal came in the middle of a write to the same stream
        os.write(2, f"\r\n{text}\r\n".encode(errors="backslashreplace"))


@contextmanager
def _stacks_in(path: Path) -> Iterator[None]:
    """Have the stacks of all threads written on the signal, by C code, before Python gets to see it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True, chain=True)
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        os.close(descriptor)
        path.unlink(missing_ok=True)


@contextmanager
def _present(path: Path, running: RunningCommand) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(attrs.asdict(running)).encode())
        yield
    finally:
        for suffix in (".json", ".ask", ".tasks"):
            path.with_suffix(suffix).unlink(missing_ok=True)
        os.close(descriptor)


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is seen with all of its text or not at all."""
    temporary = path.with_suffix(".tasks-new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    temporary.replace(path)


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


def running_commands(folder: Path) -> list[RunningCommand]:
    """The commands that run now, the latest first; what one that was killed has left behind is removed."""
    found: list[RunningCommand] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.glob("*.json")):
            running = _read(path)
            if running is not None and _is_held(path):
                found.append(running)
            else:
                for suffix in (".json", ".ask", ".tasks", ".tasks-new", ".stacks"):
                    path.with_suffix(suffix).unlink(missing_ok=True)
    return sorted(found, key=lambda each: (each.started, each.pid), reverse=True)


def find_running(folder: Path, wanted: str) -> RunningCommand:
    """The command somebody means: its process id, its session's id or the beginning of that, or ``last``.

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
    """Have a running command say what its tasks do.

    Raises:
        CommandError: It does not answer; the message has the stacks of its threads.
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
    give_up = time.monotonic() + PATIENCE
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
    said = ""
    with suppress(OSError):
        said = stacks.read_text(encoding="utf-8", errors="backslashreplace").strip()
    begin = f"process {running.pid} does not answer within {PATIENCE:g} s: "
    if not said:
        return begin + "it is stopped, or the system does not let it run"
    return f"{begin}it is inside a call that does not return to Python. Its threads:\n{said}"


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
