"""Commands of published tools end with the call that is cancelled, and with no other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import AmplifierSession
from amplifier.compat import _adapting
from amplifier.compat._processes import guard_tools
from amplifier.loading import ModuleLoader
from amplifier.testing import MockProvider, wait_for

from .published_agent import CONTEXT, write_package
from .published_bash import TOOL
from .published_loops import BASIC

LONG = "echo begun; sleep 600; echo never"
KINDS = ["published session", "native session"]


@pytest.fixture
def anyio_backend() -> str:
    """These tests cancel tasks with asyncio's own ``Task.cancel``. On trio such a tool runs on an island, which `tests/loading/islands` tests."""
    return "asyncio"


@pytest.fixture
def directory(alias: None, tmp_path: Path) -> Iterator[Path]:
    for module_id, source in {
        "tool-shell": TOOL,
        "loop-scripted": BASIC,
        "context-scripted": CONTEXT,
    }.items():
        write_package(tmp_path, module_id, source)
    before = list(sys.path)
    sys.path[:0] = [str(root) for root in tmp_path.glob("amplifier-module-*")]
    yield tmp_path
    sys.path[:] = before


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


class Play:
    """An open session whose model calls the shell."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.started = anyio.Event()
        self.pids: list[int] = []

    def note(self, pid: int) -> None:
        self.pids.append(pid)
        self.started.set()

    async def begin(self) -> asyncio.Task[Any]:
        task = asyncio.create_task(self.session.execute("go"))
        await self.started.wait()
        return task


@asynccontextmanager
async def playing(kind: str, directory: Path, *turns: Any, **config: Any) -> AsyncIterator[Play]:
    """A session that plays the turns; closed at the end, if it is not yet."""
    provider = MockProvider(list(turns))

    async def mount(coordinator: Any, config: Any = None) -> None:
        await coordinator.mount("providers", provider, name="mock")

    plan = {
        "session": {"orchestrator": "loop-scripted", "context": "context-scripted"},
        "tools": [{"module": "tool-shell", "config": config}],
    }
    session: Any
    if kind == "native session":
        plan["providers"] = [{"module": "provider-own"}]
        plan["session"]["orchestrator"] = "loop-basic"  # type: ignore[index]  # ours, which cancels by a scope
        session = AmplifierSession(plan, loader=ModuleLoader(modules={"provider-own": mount}))
    else:
        session = AmplifierSession(plan)
        session.coordinator.mount("providers", provider, name="mock")  # type: ignore[unused-awaitable]  # done at once
    play = Play(session)
    session.coordinator.register_capability("test.started", play.note)
    async with session:
        yield play


async def cancelled(task: asyncio.Task[Any], *ends_with: type[BaseException]) -> None:
    """Cancel a task and wait until it has ended, with one of these errors if they are given."""
    task.cancel()
    with suppress(*(ends_with or (BaseException,))):
        await task


def shell(command: str, **more: Any) -> Any:
    return ("bash", {"command": command, **more})


def by_token(play: Play, task: asyncio.Task[Any]) -> None:
    play.session.coordinator.cancellation.request_immediate()


def by_task(play: Play, task: asyncio.Task[Any]) -> None:
    task.cancel()


@pytest.mark.parametrize("stop", [by_token, by_task])
@pytest.mark.parametrize("kind", KINDS)
async def test_command_of_cancelled_call_ends(
    directory: Path,
    kind: str,
    stop: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch,
):
    monkeypatch.setattr(_adapting, "IMMEDIATE_GRACE", 0.01)
    async with playing(kind, directory, shell(LONG), "never") as play:
        task = await play.begin()
        stop(play, task)
        with suppress(BaseException):
            await task
        assert [is_running(pid) for pid in play.pids] == [False]

    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "amplifier_core.tools"
    ]
    assert "tool 'bash' was cancelled and left processes running" in line
    assert str(play.pids[0]) in line
    assert "sleep 600" in line


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_session_ends_running_command(directory: Path, kind: str):
    async with playing(kind, directory, shell(LONG), "never") as play:
        task = await play.begin()
        if kind == "published session":
            await play.session.cleanup()
        else:
            task.cancel()
        with suppress(BaseException):
            await task
    assert [is_running(pid) for pid in play.pids] == [False]


@pytest.mark.parametrize("own_session", [True, False])
async def test_children_of_command_end_with_it(directory: Path, tmp_path: Path, own_session: bool):
    pids = tmp_path / "children"
    command = (
        f"sleep 600 & echo $! > {pids}; sleep 601 & echo $! >> {pids}; echo done >> {pids}; wait"
    )
    async with playing(
        "published session", directory, shell(command), "never", start_new_session=own_session
    ) as play:
        task = await play.begin()
        assert await wait_for(lambda: pids.exists() and "done" in pids.read_text(), 60)
        await cancelled(task)
    children = [int(pid) for pid in pids.read_text().split()[:2]]
    assert [is_running(pid) for pid in [*play.pids, *children]] == [False] * 3


async def test_command_ignoring_request_is_killed(directory: Path, tmp_path: Path):
    ready = tmp_path / "ready"
    command = f"trap '' TERM; echo > {ready}; while :; do sleep 0.05; done"
    async with playing("published session", directory, shell(command), "never") as play:
        task = await play.begin()
        assert await wait_for(ready.exists, 60)
        await cancelled(task)
    assert [is_running(pid) for pid in play.pids] == [False]


async def test_processes_of_returned_call_keep_running(
    directory: Path, caplog: pytest.LogCaptureFixture
):
    background = shell("sleep 600", run_in_background=True)
    async with playing("published session", directory, background, shell(LONG), "never") as play:
        tool = play.session.coordinator.get("tools")["bash"]
        task = await play.begin()
        await cancelled(task)
        kept, ended = tool.pids
        running = (is_running(kept), is_running(ended))
        os.killpg(kept, signal.SIGKILL)
        await tool.background[0].wait()
    assert running == (True, False)


async def test_only_processes_of_cancelled_session_end(directory: Path):
    async with (
        playing("published session", directory, shell(LONG), "never") as one,
        playing("published session", directory, shell(LONG), "never") as other,
    ):
        first, second = await one.begin(), await other.begin()
        elsewhere = await asyncio.create_subprocess_exec("sleep", "600")
        await cancelled(first)
        running = [is_running(pid) for pid in (*one.pids, *other.pids, elsewhere.pid)]
        await cancelled(second)
        elsewhere.kill()
        await elsewhere.wait()
    assert running == [False, True, True]


async def test_normal_call_is_unchanged(directory: Path, caplog: pytest.LogCaptureFixture):
    async with playing("published session", directory, shell("echo hello"), "done") as play:
        assert await play.session.execute("go") == "done"
        messages = await play.session.coordinator.get("context").get_messages()
    assert "hello" in str(messages)
    assert [record for record in caplog.records if record.name == "amplifier_core.tools"] == []


async def test_process_of_worker_thread_belongs_to_call(alias: None):
    class Tool:
        async def execute(self, given: Any) -> Any:
            return await asyncio.to_thread(subprocess.run, ["sleep", "600"], check=False)

    (pid,) = await _cancelled(Tool())
    assert await wait_for(lambda: not is_running(pid), 60)


async def test_late_process_of_cancelled_call_ends(alias: None, caplog):
    """The call is cancelled between the request to its thread and the start of the process there."""
    reached, go = threading.Event(), threading.Event()
    ended: list[int] = []

    def work() -> None:
        reached.set()
        go.wait(60)
        ended.append(subprocess.run(["sleep", "600"], check=False).returncode)

    class Tool:
        async def execute(self, given: Any) -> Any:
            return await asyncio.to_thread(work)

    tool = Tool()
    guard_tools({"late": tool})
    task = asyncio.create_task(tool.execute({}))
    await asyncio.to_thread(reached.wait, 10)
    await cancelled(task, asyncio.CancelledError)
    go.set()

    assert await wait_for(lambda: bool(ended), 60)
    assert ended == [-signal.SIGKILL]
    assert "tool 'late' was cancelled while it started process" in caplog.text


async def _cancelled(tool: Any) -> list[int]:
    """Call a guarded tool, cancel it when it has started a process; gives the processes."""
    before = _children()
    guard_tools({"own": tool})
    task = asyncio.create_task(tool.execute({}))
    assert await wait_for(lambda: bool(_children() - before), 60)
    started = sorted(_children() - before)
    await cancelled(task, asyncio.CancelledError)
    return started


def _children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def test_uninstalling_restores_popen():
    from amplifier import compat

    class Tool:
        async def execute(self, given: Any) -> Any:
            return given

    before = subprocess.Popen.__init__
    compat.install()
    tool = Tool()
    guard_tools({"a": tool})
    asyncio.run(tool.execute({}))
    during = subprocess.Popen.__init__
    compat.uninstall()

    assert during is not before
    assert subprocess.Popen.__init__ is before


def test_guard_covers_class_methods_once(alias: None):
    class Tool:
        async def execute(self, given: Any) -> Any:
            return given

        def sync(self) -> None: ...

    async def bare(given: Any) -> Any:
        return given

    tool, other = Tool(), SimpleNamespace(execute=bare)
    guard_tools({"a": tool, "b": other})
    guarded = tool.execute
    guard_tools({"a": tool})
    guard_tools(None)

    assert tool.execute is guarded
    assert guarded.__name__ == "execute"
    assert asyncio.iscoroutinefunction(guarded)
    assert other.execute is bare


def test_copy_of_guarded_tool_calls_itself(alias: None):
    import copy

    class Tool:
        def __init__(self, label: str) -> None:
            self.label = label

        async def execute(self, given: Any) -> Any:
            return self.label

    tool = Tool("original")
    guard_tools({"a": tool})
    twin = copy.deepcopy(tool)
    twin.label = "copy"
    assert asyncio.run(twin.execute({})) == "copy"
