"""An agent in which every module is a published-style one: whole turns, both ways of stopping, both kinds of session.

The same scenarios are compared with the published kernel in `differential/test_agent.py`; here the alias alone is looked at, and
what must hold beyond the published kernel: a stop reaches a running tool, and nothing is left when the session is closed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio

from tests._support.backends import by_turns
from tests._support.processes import is_alive

from .agent_play import SCENARIOS, Approver, approve_with, build, play
from .published_agent import agent_plan, write_agent

LOOPS = ("loop-basic", "loop-streaming")
SLEEP = {"bash": {"command": "exec sleep 600"}}


@pytest.fixture
def directory(alias: None, tmp_path: Path) -> Iterator[Path]:
    """The modules on disk, and the place where the agent works; the process is as it was afterwards."""
    write_agent(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before, "the session left entries in sys.path"


class Turn:
    """A turn in a task of its own, which can be cancelled and awaited."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._over = anyio.Event()
        self._outcome: list[Any] = []
        self._task: Any = None
        self._scope = anyio.CancelScope()
        if sniffio.current_async_library() == "trio":
            trio.lowlevel.spawn_system_task(self._run)
        else:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            with self._scope:
                self._outcome = [await self._session.execute("go"), None]
        except BaseException as exc:
            self._outcome = [None, exc]
        finally:
            self._over.set()

    def cancel(self) -> None:
        """Cancel the task as each backend does."""
        self._scope.cancel() if self._task is None else self._task.cancel()

    def __await__(self) -> Any:
        yield from self._over.wait().__await__()
        if not self._outcome:
            raise asyncio.CancelledError("the turn was cancelled")
        value, error = self._outcome
        if error is not None:
            raise error
        return value


class Running:
    """A session whose agent is in the middle of a command that would never end."""

    def __init__(self, session: Any, log: list[Any]) -> None:
        self.session = session
        self.log = log
        self.messages: list[dict[str, Any]] = []

    @asynccontextmanager
    async def in_the_middle(self) -> AsyncIterator[Turn]:
        """The session is open, and its turn runs the command."""
        async with self.session:
            approve_with(self.session, Approver(True))
            started = anyio.Event()
            self.session.coordinator.register_capability("test.started", started.set)
            turn = Turn(self.session)
            await started.wait()
            yield turn

    async def remember(self) -> None:
        self.messages = await self.session.coordinator.get("context").get_messages()
        self.pids = list(self.session.coordinator.get("tools")["bash"].pids)
        self.left = self.session.coordinator.cancellation.running_tools

    def names(self) -> list[str]:
        return [event for event, _ in self.log]


async def running(
    directory: Path, loop: str, session_class: Any = None, script: Any = None
) -> Running:
    import amplifier_core  # type: ignore[import-not-found]

    plan = agent_plan(loop, script or [SLEEP])
    session, log = await build(session_class or amplifier_core.AmplifierSession, plan, directory)
    return Running(session, log)


# ── whole turns ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loop", "anyio_backend"), by_turns((n, loop) for n in SCENARIOS for loop in LOOPS)
)
async def test_every_scenario_closes_everything(directory: Path, loop: str, name: str):
    seen = await play(SCENARIOS[name], loop, directory)

    assert [event for event, _ in seen["events"]][-1] == "session:end"
    assert seen["closed"] == [True, True, False]
    assert seen["left running"] == []
    # The test listens for itself; the handlers of modules are gone.
    assert set(seen["handlers"][1]) == {"module:load_failed"}


@pytest.mark.parametrize("loop", LOOPS)
async def test_turn_with_all_tools_leaves_its_work(directory: Path, loop: str):
    seen = await play(SCENARIOS["all tools"], loop, directory)

    assert seen["outcomes"][0][1].strip() == "All done."
    assert (directory / "a.txt").read_text().startswith("alpha")
    assert seen["asked"] == ["bash"]
    assert seen["todos"] == [{"content": "count", "status": "pending"}]
    contents = [message["content"] for message in seen["messages"] if message["role"] == "tool"]
    assert len(contents) == 7
    assert "[REDACTED:SECRET]" in contents[1]
    assert not any("sk-abc123def" in content for content in contents)
    assert "from the shell" in contents[4]
    assert "Tool 'unknown' not found" in contents[6]
    reminders = [request[-1]["content"] for request in seen["requests"]]
    assert "count" in reminders[-1]
    assert seen["requests"][0][-1]["content"] == "session: root"


# ── both ways of stopping, in a published session ────────────────────────────────────────────────


@pytest.mark.parametrize("loop", LOOPS)
async def test_immediate_stop_ends_running_command(directory: Path, loop: str):
    agent = await running(directory, loop)
    async with agent.in_the_middle() as turn:
        agent.session.coordinator.cancellation.request_immediate()
        assert await turn == ""
        await agent.remember()

    assert agent.names().count("cancel:requested") == 2  # the kernel's, and the loop's own
    assert agent.names().count("cancel:completed") == 2
    assert agent.names()[-1] == "session:end"
    assert agent.names().index("orchestrator:complete") > agent.names().index("cancel:requested")
    assert agent.left == set()
    assert not any(is_alive(pid) for pid in agent.pids)
    if loop == "loop-basic":
        assert agent.messages[-1]["content"] == "Stopped before the tools had ended."
        assert agent.messages[-2]["role"] == "tool"


@pytest.mark.parametrize("kind", ["published session", "native session"])
@pytest.mark.parametrize("loop", LOOPS)
async def test_graceful_stop_waits_for_running_command(directory: Path, loop: str, kind: str):
    from amplifier import AmplifierSession

    release = directory / "release.txt"
    command = {"bash": {"command": f"while [ ! -f {release} ]; do sleep 0.01; done; echo finished"}}
    session_class = AmplifierSession if kind == "native session" else None
    agent = await running(directory, loop, session_class, script=[command, "never"])
    async with agent.in_the_middle() as turn:
        agent.session.coordinator.cancellation.request_graceful()
        assert agent.session.coordinator.cancellation.running_tool_names == ["bash"]
        release.write_text("now")
        answer = await turn
        await agent.remember()

    assert answer == ""
    assert "finished" in agent.messages[-1]["content"]
    assert agent.names().count("provider:request") == 1
    assert agent.names()[-2:] == ["cancel:completed", "session:end"]
    assert agent.left == set()


@pytest.mark.parametrize("loop", LOOPS)
async def test_task_cancellation_follows_loop_unwinding(directory: Path, loop: str):
    agent = await running(directory, loop)
    async with agent.in_the_middle() as turn:
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await agent.remember()

    order = [
        name for name in agent.names() if name.startswith(("cancel:", "orchestrator:", "session:"))
    ]
    assert order == [
        *("session:start", "cancel:requested", "cancel:completed", "orchestrator:complete"),
        *("cancel:completed", "session:end"),
    ]
    assert not any(is_alive(pid) for pid in agent.pids)


async def _wait(event: str, data: dict[str, Any]) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which alone has Task.cancel
@pytest.mark.parametrize("first", ["the caller", "the token"])
async def test_second_cancellation_waits_for_cleanup(directory: Path, first: str):
    agent = await running(directory, "loop-basic")
    async with agent.in_the_middle() as turn:
        hooks = agent.session.coordinator.hooks
        hooks.register("cancel:completed", _wait, name="waits while the loop cleans up")
        hooks.register("cancel:requested", lambda event, data: turn.cancel(), name="cancels again")
        if first == "the caller":
            turn.cancel()
        else:
            await agent.session.coordinator.request_cancel(immediate=True)
        with pytest.raises(asyncio.CancelledError):
            await turn
        await agent.remember()
    assert agent.messages[-1]["content"] == "Stopped before the tools had ended."
    assert not any(is_alive(pid) for pid in agent.pids)


async def test_cancelled_scope_reaches_loop_once(directory: Path):
    agent = await running(directory, "loop-basic")
    async with agent.session:
        approve_with(agent.session, Approver(True))
        agent.session.coordinator.hooks.register("cancel:completed", _wait, name="waits")
        with anyio.CancelScope() as scope:
            agent.session.coordinator.register_capability("test.started", scope.cancel)
            await agent.session.execute("go")
        await agent.remember()
    assert scope.cancelled_caught
    assert agent.messages[-1]["content"] == "Stopped before the tools had ended."
    assert agent.names().count("cancel:completed") == 2  # the loop's, and the kernel's own


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
async def test_turn_runs_after_stop_and_reset(directory: Path, loop: str):
    agent = await running(directory, loop, script=[SLEEP, "back again"])
    async with agent.in_the_middle() as turn:
        agent.session.coordinator.cancellation.request_immediate()
        assert await turn == ""
        agent.session.coordinator.cancellation.reset()
        again = await agent.session.execute("again")

    assert again.strip() == "back again"


# ── the same modules in a native session ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("loop", LOOPS)
async def test_native_session_runs_agent(directory: Path, loop: str):
    from amplifier import AmplifierSession

    script = [
        {"write_file": {"file_path": "a.txt", "content": "x"}},
        {"bash": {"command": "echo hi"}},
        "done",
    ]
    agent = await running(directory, loop, AmplifierSession, script=script)
    async with agent.session:
        approve_with(agent.session, Approver(True))
        answer = await agent.session.execute("go")
        await agent.remember()

    assert answer.strip() == "done"
    assert (directory / "a.txt").read_text() == "x"
    assert [message["role"] for message in agent.messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert "hi" in agent.messages[4]["content"]
    assert agent.names()[-1] == "session:end"


@pytest.mark.parametrize("loop", LOOPS)
async def test_native_stop_ends_published_tool_command(directory: Path, loop: str):
    from amplifier import AmplifierSession, ExecutionCancelled

    agent = await running(directory, loop, AmplifierSession)
    async with agent.in_the_middle() as turn:
        agent.session.coordinator.request_cancel(immediate=True)
        with pytest.raises(ExecutionCancelled):
            await turn
        await agent.remember()

    assert not any(is_alive(pid) for pid in agent.pids)
    assert "cancel:requested" in agent.names()
    assert "cancel:completed" in agent.names()
    assert agent.names()[-1] == "session:end"
    assert agent.left == set()
    if loop == "loop-basic":
        assert agent.messages[-1]["content"] == "Stopped before the tools had ended."
        assert agent.messages[-2]["role"] == "tool"
