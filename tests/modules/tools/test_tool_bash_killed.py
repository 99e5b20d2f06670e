"""tool-bash ended at any moment and in any way: no process of a command is left, whatever it did to hide."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier._internal import processes
from amplifier.modules._shared import worker_threads
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash import _command, _confinement
from amplifier.testing import MODES, MockProvider, TestCoordinator, cancel_everywhere, wait_for
from tests._support.processes import running_processes
from tests.modules.tools.test_tool_filesystem import Desk

LINUX = sys.platform == "linux"


def is_alive(token: str) -> bool:
    return bool(running_processes(token))


def gone(token: str) -> list[str]:
    """What is left after a moment: a killed process needs one to disappear."""
    until = time.monotonic() + 60
    while (left := running_processes(token)) and time.monotonic() < until:
        time.sleep(0.01)
    return left


PYTHON = f"{sys.executable} -SE"
SLEEP = f"{PYTHON} -c 'import time; time.sleep(600)' TOKEN"
HIDING: dict[str, str] = {
    "a plain child": SLEEP,
    "exec": f"exec {SLEEP}",
    "a child of a child": f"bash -c \"bash -c '{SLEEP.replace(chr(39), chr(92) + chr(34))}; true'; true\"",
    "a pipeline": f"{SLEEP} | {SLEEP} | cat",
    "the background": f"{SLEEP} & {SLEEP} & wait",
    "a job of its own group": f"set -m; {SLEEP} & {SLEEP} & wait",
    "ignored signals": f"trap '' TERM INT HUP QUIT; {SLEEP}",
    "nohup": f"nohup {SLEEP} > /dev/null 2>&1 & sleep 600",
    "disowned": f"{SLEEP} & disown -a; sleep 600",
    "stopped": f"{SLEEP} & kill -STOP $!; wait",
    "a loop that starts more": f"for i in $(seq 100); do {SLEEP} & sleep 0.01; done; wait",
    "closed streams": f"{SLEEP} <&- >&- 2>&- & wait",
    "a subshell that left": f"( {SLEEP} & ); sleep 600",
}
LEAVING: dict[str, str] = {  # the session; only Linux shows where they went
    "setsid": f"setsid {SLEEP} & sleep 600",
    "setsid, waited for": f"setsid --wait {SLEEP}",
    "setsid twice": f"setsid setsid {SLEEP} & sleep 600",
    "setsid and no environment": f"env -i $(command -v setsid) --wait {SLEEP}",
    "a double fork": f"{PYTHON} -c 'import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(600)"
    "\n os._exit(0)\ntime.sleep(600)' TOKEN",
    "a daemon that ignores signals": f"{PYTHON} -c 'import os, time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    "\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(600)\n os._exit(0)\ntime.sleep(600)' TOKEN",
    "a new session per generation": "f() { setsid bash -c 'sleep 0.02; exec setsid sleep 600.TOKEN' & }; f; f; sleep 600",
}
WAYS = {**HIDING, **(LEAVING if LINUX else {})}


def marked(command: str) -> tuple[str, str]:
    token = str(uuid.uuid4().int)  # digits, for programs that take no words
    return command.replace("TOKEN", token), token


def left_by(tokens: dict[str, str]) -> dict[str, list[str]]:
    return {way: left for way, token in tokens.items() if (left := gone(token))}


@pytest.mark.slow
async def test_cancelled_commands_leave_no_process():
    desk = await Desk.open(None, tool_bash, max_parallel=len(WAYS))
    tokens = {}
    async with anyio.create_task_group() as group:
        for way, text in WAYS.items():
            command, tokens[way] = marked(text)
            group.start_soon(desk.tools["bash"].execute, {"command": command})
        for token in tokens.values():
            assert await wait_for(partial(is_alive, token), timeout=60)
        await anyio.sleep(
            0.5
        )  # for what they start in turn; the moment does not matter, see the test of any while
        started = time.monotonic()
        group.cancel_scope.cancel()
    assert (
        time.monotonic() - started < 60
    )  # meant is one second; the commands would take ten minutes
    assert left_by(tokens) == {}


@pytest.mark.slow
async def test_timed_out_command_leaves_no_process():
    desk = await Desk.open(None, tool_bash, max_parallel=len(WAYS), timeout=1.5, kill_grace=0.2)
    tokens = {}
    kinds = set()

    async def run(command: str) -> None:
        kinds.add((await desk.fail("bash", command=command))[0])

    async with anyio.create_task_group() as group:
        for way in (
            "a job of its own group",
            "ignored signals",
            *list(LEAVING if LINUX else ())[-3:],
        ):
            command, tokens[way] = marked(WAYS[way])
            group.start_soon(run, command)
    assert kinds == {"Timeout"}
    assert left_by(tokens) == {}


AFTER_THE_SHELL = {
    "the background": f"{SLEEP} &",
    "the background, silent": f"nohup {SLEEP} > /dev/null 2>&1 &",
    "a subshell": f"( {SLEEP} & )",
    "ignored signals": f"(trap '' TERM; {SLEEP}) &",
    **(
        {"setsid": f"setsid {SLEEP} > /dev/null 2>&1 &", "a double fork": f"( setsid {SLEEP} & )"}
        if LINUX
        else {}
    ),
}


@pytest.mark.slow
async def test_leftover_processes_end_with_command():
    desk = await Desk.open(None, tool_bash, kill_grace=0.2)
    for way, text in AFTER_THE_SHELL.items():
        command, token = marked(text)
        output = await desk.get("bash", command=f"{command}\nsleep 0.1; echo done")
        assert output["stdout"] == "done\n", way
        assert "background were ended: " in output["note"], way
        assert gone(token) == []


@pytest.mark.long
async def test_cancellation_at_any_time_leaves_nothing():
    """Moments that no suspension marks: between a fork and an exec, between the shell's start and its first child."""
    desk = await Desk.open(None, tool_bash)
    chance, token = random.Random(7), str(uuid.uuid4().int)
    leaver = "(setsid sleep 600.N &);" if LINUX else ""
    tree = f"{leaver} sleep 600.N & bash -c 'sleep 600.N & sleep 600.N' & wait".replace(
        "600.N", f"600.{token}"
    )
    for _ in range(60):
        with anyio.move_on_after(chance.uniform(0, 0.06)) as scope:
            await desk.call("bash", command=tree)
        assert scope.cancelled_caught
    assert gone(token) == []


@pytest.mark.slow
async def test_whole_group_ends_without_supervisor(monkeypatch):
    monkeypatch.setattr(_confinement, "can_supervise", lambda: False)
    monkeypatch.setattr(
        _command, "_KILL_SECONDS", 0.2
    )  # a zombie that init is slow to reap counts as a member here
    desk = await Desk.open(None, tool_bash, timeout=0.4, kill_grace=0.2)
    for way in ("a pipeline", "ignored signals"):
        command, token = marked(HIDING[way])
        assert (await desk.fail("bash", command=command))[0] == "Timeout"
        assert gone(token) == []
    command, token = marked(AFTER_THE_SHELL["the background"])
    assert "note" in await desk.get("bash", command=command)
    assert gone(token) == []
    assert await desk.get("bash", command="echo fine") == {
        "stdout": "fine\n",
        "stderr": "",
        "returncode": 0,
    }


def test_reused_process_id_is_never_signalled():
    """`send` signals by id and start time; a member that is not the one that was seen stays alone."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as unrelated:
        try:
            seen = processes.look_at(unrelated.pid)
            if seen is not None:  # there is no /proc elsewhere
                older = processes.Process(unrelated.pid, seen.started - 1, 1, 1, "S")
                processes.send_signal(older, signal.SIGKILL)
            with pytest.raises(subprocess.TimeoutExpired):
                unrelated.wait(0.1)
        finally:
            unrelated.kill()


def test_signals_work_without_process_descriptors(monkeypatch):
    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        seen = processes.look_at(process.pid)
        assert seen is not None
        processes.send_signal(seen, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a cancelled call's thread time: on a busy machine it takes more than a second to end its processes."""
    monkeypatch.setattr(worker_threads, "STOP_SECONDS", 60.0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["trio", "asyncio-scope", "asyncio-native"])
@pytest.mark.usefixtures("patient")
def test_call_cancelled_anywhere_leaves_nothing(mode):
    token = str(uuid.uuid4().int)
    command = f"trap '' TERM; sleep 600.{token} & sleep 0.05"

    def make() -> Any:
        async def scenario() -> None:
            coordinator = TestCoordinator()
            await tool_bash.mount(coordinator, {})
            await coordinator.get("tools", "bash").execute({"command": command})

        return scenario, lambda: [f"left: {line}" for line in gone(token)]

    report = cancel_everywhere(make, modes=[mode], clock="real")
    report.raise_if_broken()
    assert report.points[mode] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("patient")
def test_session_cancelled_anywhere_leaves_no_process(mode):
    token = str(uuid.uuid4().int)

    def make() -> Any:
        calls = [
            ("bash", {"command": f"sleep 600.{token} & sleep 0.02"}),
            ("bash", {"command": "echo x"}),
        ]
        plan = {
            "session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
            "providers": [MockProvider([calls, "done"])],
            "tools": ["tool-bash"],
        }

        async def scenario() -> None:
            async with AmplifierSession(plan) as session:
                await session.execute("go")

        return scenario, lambda: [f"left: {line}" for line in gone(token)]

    cancel_everywhere(make, modes=[mode], clock="real", second_after=(1, 3)).raise_if_broken()
