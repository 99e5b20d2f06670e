"""A signal shows the tasks, whatever the process is doing; the handler that was there before comes back."""

from __future__ import annotations

import os
import signal

import anyio
import anyio.lowlevel
import pytest

from amplifier.tracing import TaskTree, tasks_on_signal
from tests._support.child_process import run_child
from tests._support.small_agent import Turn, agent


async def test_signal_shows_tasks_and_turn_continues():
    trees: list[TaskTree] = []

    async def turn(turn: Turn) -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        await anyio.lowlevel.checkpoint()
        return "done"

    with tasks_on_signal(show=trees.append):
        async with agent(turn, session_id="s1") as session:
            assert await session.execute("go") == "done"
    (tree,) = trees
    assert tree.is_blocked  # the signal came while a task ran
    (running,) = [task for task in tree.tasks if task.state == "running"]
    assert (running.session_id, running.module) == ("s1", "loop-small")
    assert running.at is not None
    assert "os.kill" in running.at.code
    (caller,) = [task for task in tree.tasks if task.number == running.parent]
    assert (
        caller.state == "waiting"
    )  # the turn is a child task, for which the caller of execute() waits
    assert not any("os.kill" in line.code for line in caller.awaits)


def test_previous_handler_is_restored():
    before = signal.getsignal(signal.SIGUSR2)
    with tasks_on_signal(signal.SIGUSR2, show=lambda tree: None):
        assert signal.getsignal(signal.SIGUSR2) is not before
    assert signal.getsignal(signal.SIGUSR2) is before


async def test_failing_show_function_is_harmless(caplog):
    def fail(tree: TaskTree) -> None:
        raise RuntimeError("no window")

    with tasks_on_signal(show=fail):
        os.kill(os.getpid(), signal.SIGUSR1)
        await anyio.lowlevel.checkpoint()
    assert "could not be shown" in caplog.text


_SHOWN = """
from amplifier.tracing import tasks_on_signal
from amplifier.tracing._tasks import _write

shown = []

def show(tree):
    _write(tree)
    shown.append(tree)
    session.coordinator.cancellation.request_immediate()

async def turn(t):
    WAIT

async def announce():
    await anyio.wait_all_tasks_blocked()
    print_line("ready")

async def main():
    global session
    with tasks_on_signal(show=show):
        async with agent(turn, session_id="asleep") as session, anyio.create_task_group() as group:
            group.start_soon(announce)
            try:
                await session.execute("go")
            except ExecutionCancelled:
                print_line("over")

run_natively(main)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_idle_process_writes_tasks_to_stderr(backend):
    ended = run_child(
        _SHOWN.replace("WAIT", "await anyio.sleep_forever()"), backend, signal=signal.SIGUSR1
    )
    assert (ended.code, ended.lines) == (0, ["ready", "over"])
    assert f"1 session, {backend}" in ended.errors
    assert "session asleep, module loop-small" in ended.errors
    assert "waits at <string>" in ended.errors
    assert "(anyio sleep_forever)" in ended.errors


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_task_is_shown_at_its_line(backend):
    ended = run_child(
        _SHOWN.replace("WAIT", "print_line('ready')\n    while not shown: pass"),
        backend,
        signal=signal.SIGUSR1,
    )
    assert (ended.code, "over" in ended.lines) == (0, True)
    assert "module loop-small" in ended.errors
    assert "is running at <string>" in ended.errors
    assert "in turn [loop-small]" in ended.errors


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_without_session_belong_to_application(backend):
    program = """
    from amplifier.tracing import tasks_on_signal

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(wait_awake, name="waiting")
            with tasks_on_signal():
                await anyio.wait_all_tasks_blocked()
                signal.raise_signal(signal.SIGUSR1)
                group.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    """
    ended = run_child(program, backend)
    assert ended.code == 0
    assert "0 sessions" in ended.errors
    assert "● waiting" in ended.errors
