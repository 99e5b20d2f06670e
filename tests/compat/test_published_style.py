"""A session made of published-style modules only, from end to end, through the alias."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from .published_modules import write_modules

NATIVE = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For tests of asyncio's own ``Task.cancel``, which trio does not have."""


class RunningTurn:
    """A turn in a task of its own."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.error: Exception | None = None
        self.tool_started = anyio.Event()
        session.coordinator.register_capability("test.started", self.tool_started.set)

    async def run(self, prompt: str) -> None:
        try:
            await self.session.execute(prompt)
        except Exception as exc:
            self.error = exc


class Source:
    """The path of a module that a resolver found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        return self.path


class Resolver:
    """Finds the modules of this test."""

    def __init__(self, places: dict[str, Path]) -> None:
        self.places = places

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Source:
        return Source(self.places[module_id])


Open = Callable[..., Any]


@pytest.fixture
def opened(alias: None, tmp_path: Path) -> Iterator[Open]:
    """Build a session over the small modules; they are forgotten afterwards."""
    places = write_modules(tmp_path)

    def build(
        script: list[Any], *, session_class: Any = None, hooks: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        import amplifier_core  # type: ignore[import-not-found]

        plan = {
            "session": {
                # The harder case for a session: the loop itself waits while it cleans up. No published one does.
                "orchestrator": {"module": "loop-small-small", "config": {"waits": True}},
                "context": {"module": "context-list-small"},
            },
            "providers": [{"module": "provider-small-small", "config": {"script": script}}],
            "tools": [{"module": "tool-shell-small"}],
            "hooks": [{"module": "hooks-small-small", "config": hooks or {}}],
        }
        session = (session_class or amplifier_core.AmplifierSession)(plan, **options)
        mounting = session.coordinator.mount("module-source-resolver", Resolver(places))
        assert mounting is not None
        session.coordinator.register_capability("test.log", [])
        return session

    before = list(sys.path)
    yield build
    assert sys.path == before, "the session left entries in sys.path"
    for name in [name for name in sys.modules if name.startswith("amplifier_module_") and "small" in name]:
        del sys.modules[name]


class Allow:
    """An approval system that answers the same to everything."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        self.asked.append(prompt)
        return self.answer


def events_of(session: Any) -> list[str]:
    return [event for event, _ in session.coordinator.get_capability("test.log")]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def messages_of(session: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await session.coordinator.get("context").get_messages()
    return found


async def test_a_turn_with_tools_and_hooks_runs_to_its_end(opened: Open):
    session = opened([{"echo": {"text": "hi"}, "shell": {"command": "echo there"}}, "all done"])

    async with session:
        answer = await session.execute("go")
        messages = await messages_of(session)

    assert answer == "all done"
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[2]["content"] == "{'text': 'hi', 'n': 1}"
    assert "there" in messages[3]["content"]
    names = events_of(session)
    assert names[:4] == ["session:start", "prompt:submit", "provider:request", "provider:response"]
    assert names[-2:] == ["orchestrator:complete", "session:end"]
    assert session.coordinator.session_state == {"ready": ["echo", "pause", "shell"]}


async def test_handlers_see_objects_as_text(opened: Open):
    session = opened([{"echo": {"text": "hi"}}, "ok"])

    async with session:
        await session.execute("go")
        log = dict(session.coordinator.get_capability("test.log"))

    assert log["provider:response"]["usage"].startswith("input_tokens=10 output_tokens=5 total_tokens=15")
    assert isinstance(log["tool:post"]["result"], str)
    assert {"session_id", "parent_id", "timestamp"} <= set(log["tool:pre"])


async def test_a_modification_comes_back_as_continue_and_reaches_the_context(opened: Open):
    session = opened([{"echo": {"text": "a secret"}}, "ok"], hooks={"redact": True})

    async with session:
        await session.execute("go")
        messages = await messages_of(session)

    assert "[REDACTED]" in messages[2]["content"]
    assert "secret" not in messages[2]["content"]


@pytest.mark.parametrize(
    ("answer", "expected"), [("Allow", "code"), ("Deny", "Denied by hook: User denied: Run shell?")]
)
async def test_a_question_of_a_hook_is_answered_by_the_approval_system(opened: Open, answer: str, expected: str):
    system = Allow(answer)
    session = opened([{"shell": {"command": "true"}}, "ok"], hooks={"ask": ["shell"]}, approval_system=system)

    async with session:
        await session.execute("go")
        messages = await messages_of(session)

    assert system.asked == ["Run shell?"]
    assert expected in messages[2]["content"]


async def test_an_error_of_the_provider_leaves_as_a_runtime_error_with_its_cause(opened: Open):
    session = opened(["fail", "recovered"])

    async with session:
        with pytest.raises(RuntimeError, match=r"^Execution failed: RateLimitError: slow down$") as caught:
            await session.execute("go")
        again = await session.execute("again")

    assert type(caught.value.__cause__).__name__ == "RateLimitError"
    assert again == "recovered"


async def test_a_graceful_stop_lets_the_running_tools_finish_and_starts_nothing_new(opened: Open):
    session = opened(["graceful", "never"])

    async with session:
        answer = await session.execute("go")
        messages = await messages_of(session)

    names = events_of(session)
    assert answer == ""
    assert messages[-1]["role"] == "tool"
    assert names[-5:] == [
        "cancel:requested",
        "cancel:completed",
        "orchestrator:complete",
        "cancel:completed",
        "session:end",
    ]


async def test_a_loop_that_answers_an_immediate_stop_itself_returns_as_published(opened: Open):
    session = opened(["immediate"])

    async with session:
        answer = await session.execute("go")

    names = events_of(session)
    assert answer == ""
    assert names[:3] == ["session:start", "prompt:submit", "provider:request"]
    assert names[-4:] == ["cancel:completed", "orchestrator:complete", "cancel:completed", "session:end"]


@pytest.mark.parametrize("slow", [False, True], ids=["handlers at once", "handlers that wait"])
async def test_an_immediate_stop_reaches_a_running_tool_and_the_loop_cleans_up(opened: Open, slow: bool):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": slow})

    async with session:
        turn = RunningTurn(session)
        async with anyio.create_task_group() as group:
            group.start_soon(turn.run, "go")
            await turn.tool_started.wait()
            session.coordinator.cancellation.request_immediate()
        messages = await messages_of(session)
        pids = session.coordinator.todo_state

    names = events_of(session)
    assert turn.error is None
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[-1]["content"] == "Stopped."
    assert names[-5:] == [
        "cancel:requested",
        "cancel:completed",
        "orchestrator:complete",
        "cancel:completed",
        "session:end",
    ]
    assert not any(is_running(pid) for pid in pids)


@NATIVE
@pytest.mark.parametrize("slow", [False, True], ids=["handlers at once", "handlers that wait"])
async def test_a_cancelled_caller_leaves_only_after_the_loop_has_cleaned_up(opened: Open, slow: bool):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": slow})

    async with session:
        started = asyncio.Event()
        session.coordinator.register_capability("test.started", started.set)
        turn = asyncio.create_task(session.execute("go"))
        await started.wait()
        turn.cancel()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        messages = await messages_of(session)
        pids = session.coordinator.todo_state

    names = events_of(session)
    assert messages[-1]["content"] == "Stopped."
    assert names[-4:] == ["cancel:completed", "orchestrator:complete", "cancel:completed", "session:end"]
    assert not any(is_running(pid) for pid in pids)


@NATIVE
@pytest.mark.parametrize("first", ["the caller", "the token"])
async def test_a_second_cancellation_waits_until_the_loop_has_cleaned_up(opened: Open, first: str):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": True})

    async with session:
        started = asyncio.Event()
        session.coordinator.register_capability("test.started", started.set)
        turn = asyncio.create_task(session.execute("go"))
        session.coordinator.hooks.register("cancel:requested", lambda event, data: turn.cancel())
        await started.wait()
        if first == "the caller":
            turn.cancel()
        else:
            await session.coordinator.request_cancel(immediate=True)
        with pytest.raises(asyncio.CancelledError):
            await turn
        messages = await messages_of(session)

    assert messages[-1]["content"] == "Stopped."


async def test_a_cancelled_scope_around_the_turn_reaches_the_loop_once(opened: Open):
    session = opened([{"shell": {"command": "exec sleep 600"}}], hooks={"slow": True})

    async with session:
        with anyio.CancelScope() as scope:
            session.coordinator.register_capability("test.started", scope.cancel)
            await session.execute("go")
        messages = await messages_of(session)

    names = events_of(session)
    assert scope.cancelled_caught
    assert messages[-1]["content"] == "Stopped."
    assert names.count("cancel:completed") == 2  # the loop's, and the kernel's own


async def test_closing_the_session_ends_a_turn_that_another_task_runs(opened: Open):
    session = opened([{"shell": {"command": "exec sleep 600"}}])
    await session.initialize()
    turn = RunningTurn(session)
    async with anyio.create_task_group() as group:
        group.start_soon(turn.run, "go")
        await turn.tool_started.wait()
        pids = session.coordinator.todo_state
        await session.cleanup()

    assert isinstance(turn.error, RuntimeError)
    assert "its session was closed" in str(turn.error)
    assert not any(is_running(pid) for pid in pids)
    assert not session.initialized


async def test_the_response_of_a_provider_keeps_its_own_fields(opened: Open):
    session = opened(["plain"])

    async with session:
        provider = session.coordinator.get("providers")["small"]
        response = await provider.complete(None)

    assert (response.text, response.content_blocks, response.usage.cost_unpriced_model) == ("plain", None, "s")
    assert provider.closed


async def test_the_same_modules_run_in_a_native_session(opened: Open):
    """Native behaviour: the loop sees ``modify``, an immediate stop is `ExecutionCancelled`, nothing is left running."""
    from amplifier import AmplifierSession, ExecutionCancelled

    session = opened([{"echo": {"text": "hi"}}, "done", {"pause": {}}], session_class=AmplifierSession)
    async with session:
        answer = await session.execute("go")
        turn = RunningTurn(session)
        async with anyio.create_task_group() as group:
            group.start_soon(turn.run, "again")
            await turn.tool_started.wait()
            session.coordinator.request_cancel(immediate=True)
        assert isinstance(turn.error, ExecutionCancelled)
        messages = await messages_of(session)
        log = session.coordinator.get_capability("test.log")

    names = [event for event, _ in log]
    assert answer == "done"
    assert messages[-1] == {"role": "assistant", "content": "Stopped."}
    assert names[-1] == "session:end"
    assert "cancel:completed" in names
