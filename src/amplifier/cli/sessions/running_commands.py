"""Requests the tasks of a running command, also of one that hangs; see `amplifier.tracing._running_commands`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.models import from_json
from amplifier.tracing import TaskTree
from amplifier.tracing._running_commands import ASK, RunningCommand, is_held, running_commands

from .store import LAST

__all__ = ["find_running", "request_tasks"]

ANSWER_TIMEOUT = 5.0
"""Seconds a process gets to answer; one that runs Python at all needs milliseconds."""

_POLL = 0.02


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
            file.write(ASK)
        os.kill(running.pid, signal.SIGUSR1)
        give_up = time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < give_up:
            written = path.read_bytes()[start + len(ASK) :]
            for line in written.splitlines(keepends=True):
                if line.startswith(b"{") and line.endswith(b"\n"):
                    return from_json(TaskTree, line.decode())
            if not is_held(path):
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
