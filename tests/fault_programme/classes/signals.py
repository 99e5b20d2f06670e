"""A real ``amplifier run`` gets a signal at one of 25 moments: its exit status, what is left running, and whether its session loads.

22 moments are events of the run, at which a hook halts the process until the signal is sent. At the other three, a command of
`tool-bash` is at work, a command has left a child behind, and the process has just been started.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier.cli._sessions import SessionStore
from tests._support.processes import running_processes
from tests._support.terminal import command, environment
from tests._support.tree import ROOT
from tests.cli._scripted_agent import write_plan

from ..parts import BACKENDS, Chunk, Outcome, part_of
from .halting_hook import EVENTS, GO_ON, REACHED

SIGNALS: dict[str, tuple[list[signal.Signals], int]] = {
    "INT": ([signal.SIGINT], 130),
    "INT-INT": ([signal.SIGINT, signal.SIGINT], 130),
    "TERM": ([signal.SIGTERM], 143),
    "HUP": ([signal.SIGHUP], 129),
    "KILL": ([signal.SIGKILL], -signal.SIGKILL),
}
AT_EVENTS = 22
OTHER_MOMENTS = ("a command runs", "a command with a child", "the process starts")
MOMENTS = AT_EVENTS + len(OTHER_MOMENTS)
PATIENCE = 300.0
"""Seconds that a busy machine may take for one process."""
ANSWER = "done: "
SHELL = (
    "echo one two three four five six seven eight nine ten"  # each word is an event of the answer
)


class Run:
    """One process of the command line in a folder of its own."""

    def __init__(self, folder: Path, backend: str, shell: str, at: int) -> None:
        self.folder = folder
        self.home = folder / "home"
        plan_file = write_plan(folder)
        plan: dict[str, Any] = json.loads(plan_file.read_text())
        plan["tools"].append({"module": "tool-bash", "config": {"sandbox": "off"}})
        source = str(ROOT / "tests" / "fault_programme" / "classes" / "halting_hook.py")
        halting = {
            "module": "hooks-halting",
            "source": self._package(source),
            "config": {"folder": str(folder), "at": at},
        }
        plan["hooks"].append(halting)
        plan_file.write_text(json.dumps(plan))
        work = folder / "work"
        work.mkdir()
        prompt = f"call bash {json.dumps({'command': shell})}"
        words = command(
            "run",
            prompt,
            "--plan",
            str(plan_file),
            "--backend",
            backend,
            "--yes",
            "--session-id",
            "the-one",
        )
        self.process = subprocess.Popen(
            words,
            cwd=work,
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _package(self, source: str) -> str:
        package = self.folder / "modules" / "amplifier_module_hooks_halting"
        package.mkdir()
        text = Path(source).read_text()
        (package / "__init__.py").write_text(text)
        return str(package)

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Wait for something the process does; False if it ended or took too long."""
        give_up = time.monotonic() + PATIENCE
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > give_up:
                return is_so()
            time.sleep(0.01)
        return True

    def send(self, signals: list[signal.Signals]) -> None:
        for number, each in enumerate(signals):
            if number:
                time.sleep(0.1)  # two that come at once are one
            if self.process.poll() is None:
                self.process.send_signal(each)
        (self.folder / GO_ON).touch()

    def end(self) -> tuple[int | None, str, str]:
        """Wait for its end; the code is None if it does not come."""
        try:
            output, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, errors = self.process.communicate()
            return None, output.decode(), errors.decode()
        return self.process.returncode, output.decode(), errors.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def number_of_events(backend: str) -> int:
    """How many events a run has that no one disturbs."""
    with tempfile.TemporaryDirectory() as name:
        run_ = Run(Path(name), backend, SHELL, 0)
        code, _, errors = run_.end()
        if code != 0:
            raise RuntimeError(f"the undisturbed run ended with {code}: {errors}")
        return (Path(name) / EVENTS).read_text().count("\n")


def try_signal(outcome: Outcome, backend: str, kind: str, moment: int, events: int) -> None:
    """Signal one process at one moment and look at what it leaves."""
    signals, expected = SIGNALS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Processes are found by this text: in a sandbox they have other ids.
        sleep = f"sleep {2 if kind == 'INT' else 600}.{secrets.randbelow(10**12)}"  # one Ctrl-C lets the running step finish
        if moment < AT_EVENTS:
            at, shell = 1 + moment * (events - 1) // (AT_EVENTS - 1), SHELL
            where, is_reached = f"event {at} of {events}", (folder / REACHED).exists
        else:
            at, where = 0, OTHER_MOMENTS[moment - AT_EVENTS]
            child = f"(trap '' INT HUP TERM; {sleep}) & " if "child" in where else ""
            shell = f"cd {name}; {child}touch {REACHED}; {sleep}"
            is_reached = (
                (folder / REACHED).exists if "command" in where else (folder / "work").exists
            )
        run_ = Run(folder, backend, shell, at)
        try:
            where = f"{kind} on {backend}, {where}"
            if not run_.wait_until(is_reached):
                outcome.fail(f"{where}: the moment was not reached: {run_.end()}")
                return
            run_.send(signals)
            code, output, errors = run_.end()
        finally:
            run_.close()
        outcome.cases += 1
        # A signal at the last events may meet a process that has done its work, and one at the very start an interpreter that has
        # not set up its handlers.
        is_over = code == 0 and ANSWER in output
        if code is None:
            outcome.fail(f"{where}: did not end within {PATIENCE:g} s: {errors[-300:]}")
        elif code != expected and not is_over and "starts" not in where:
            outcome.fail(f"{where}: exit status {code}, expected {expected}: {errors[-300:]}")
        if "Traceback" in errors and "starts" not in where:
            outcome.fail(f"{where}: a traceback: {errors[-500:]}")
        for line in _still_running(sleep):
            outcome.fail(f"{where}: a process of the command is still running: {line}")
            os.kill(int(line.split()[0]), signal.SIGKILL)
        _check_session(outcome, where, run_.home, is_killed=kind == "KILL")


def _still_running(text: str) -> list[str]:
    give_up = time.monotonic() + PATIENCE / 10
    while (found := running_processes(text)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return found


def _check_session(outcome: Outcome, where: str, home: Path, *, is_killed: bool) -> None:
    """The store reads the session; of a process that could clean up, every call has its result."""
    store = SessionStore(home / "sessions")
    try:
        for record in store.records():
            messages: list[Any] = store.transcript(record.session_id)
            calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
            results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            if results != (calls[: len(results)] if is_killed else calls):
                outcome.fail(f"{where}: calls {calls} have the results {results}")
            outcome.count("sessions that loaded")
    except Exception as exc:
        outcome.fail(f"{where}: the session does not load: {exc!r:.300}")


def run(backend: str, kind: str, moments: int) -> Outcome:
    """One signal at every ``moments``-th part of a run."""
    outcome = Outcome()
    events = number_of_events(backend)
    for moment in sorted(
        {round(place * (MOMENTS - 1) / max(1, moments - 1)) for place in range(moments)}
    ):
        try_signal(outcome, backend, kind, moment, events)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """Every signal on both backends."""
    moments = part_of(MOMENTS, share)
    return [
        Chunk(f"{kind} on {backend}", {"backend": backend, "kind": kind, "moments": moments})
        for kind in SIGNALS
        for backend in BACKENDS
    ]
