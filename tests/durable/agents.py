"""Agents for tests of engines, and the engines they run on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import (
    AmplifierSession,
    ChatRequest,
    ChatResponse,
    ModuleLoader,
    TextBlock,
    ToolCall,
    durable,
)
from amplifier.durable import DurableEngine, TurnStatus
from amplifier.models import HookResult
from amplifier.testing import MockProvider, MockTool
from tests.modules.durable_agent import EffectTool, ScriptedModel

REPEATABLE = {"again": True, "once": False, "unknown": None}

ENGINES = ("sqlite", pytest.param("postgres", marks=pytest.mark.long))
"""A file, and a server. `test_engines_on_servers.py` runs the main tests with the server among the slow tests."""


def open_engine(
    kind: str, place: Path | str, **options: Any
) -> AbstractAsyncContextManager[DurableEngine]:
    """An engine whose workers notice everything quickly.

    Args:
        kind: One of `ENGINES`.
        place: A folder for its file, or the URL of a database.
        options: Others than the quick ones.
    """
    options = {"poll": 0.02, "pickup": 0.02, "lease": 1.0, "patience": 60.0, **options}
    return durable.open_engine(place if kind == "postgres" else Path(place) / "turns.db", **options)


def mounting(thing: Any) -> Any:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        return thing

    return mount


def agent(
    provider: Any, *tools: Any, hooks: dict[str, Any] | None = None, **plan: Any
) -> Callable[[str], AmplifierSession]:
    """A factory of sessions with these parts."""
    modules = {"provider-scripted": mounting(provider)}
    modules |= {f"tool-{tool.name}": mounting(tool) for tool in tools}
    modules |= hooks or {}
    whole: dict[str, Any] = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-scripted"],
        "tools": [f"tool-{tool.name}" for tool in tools],
        "hooks": list(hooks or ()),
        **plan,
    }

    def make_session(session_id: str) -> AmplifierSession:
        return AmplifierSession(whole, ModuleLoader(modules=modules), session_id=session_id)

    return make_session


def effect_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Four answers with four tool calls each, at the same time; effects are lines of a file per session."""

    def make_session(session_id: str) -> AmplifierSession:
        tools = [
            EffectTool(name, folder / f"{session_id}.effects", may)
            for name, may in REPEATABLE.items()
        ]
        session = agent(ScriptedModel(), *tools)(session_id)
        session.coordinator.approval_system = (
            Denying()
        )  # else a tool that declares nothing would wait for an answer
        return session

    return make_session


class _ParentModel(ScriptedModel):
    """Gives its one task to a child, which follows the script."""

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        is_child = any(
            each.role == "user" and "the child's task" in str(each.content)
            for each in request.messages
        )
        if is_child or any(each.role == "tool" for each in request.messages):
            answer = await super().complete(request, **kwargs)
            return answer if is_child else ChatResponse(content=[TextBlock(text="All done.")])
        task = {"agent": "helper", "instruction": "the child's task"}
        return ChatResponse(
            content=[], tool_calls=[ToolCall(id="task", name="task", arguments=task)]
        )


def parent_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """As `effect_agent`, but a child of the session makes the calls."""

    def make_session(session_id: str) -> AmplifierSession:
        tools = [
            EffectTool(name, folder / f"{session_id}.effects", may)
            for name, may in REPEATABLE.items()
        ]
        names = [*(f"tool-{each}" for each in REPEATABLE), "tool-task"]
        session = agent(
            _ParentModel(), *tools, tools=names, agents={"helper": {"description": "helps"}}
        )(session_id)
        session.coordinator.approval_system = Denying()
        return session

    return make_session


def quick_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Two model calls and one tool call; notes when it begins."""

    def look_or_end(request: ChatRequest) -> Any:
        return "Two shelves." if request.messages[-1].role == "tool" else [("look", {})]

    def make_session(session_id: str) -> AmplifierSession:
        (folder / f"{session_id}.begun").write_text(repr(time.time()))
        look = tool("look", lambda given: "two shelves", repeatable=True)
        return agent(answering(look_or_end, look_or_end), look)(session_id)

    return make_session


def asking(
    event: str = "tool:pre",
    prompt: str = "May I pay?",
    when: Callable[[dict[str, Any]], bool] = lambda data: True,
) -> dict[str, Any]:
    """Hooks for `agent` that ask a person at an event."""

    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        if not when(data):
            return HookResult(action="continue")
        return HookResult(
            action="ask_user", approval_prompt=prompt, approval_options=["Allow", "Deny"]
        )

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register(event, ask, name="ask")

    return {"hooks-ask": mount}


def asking_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Pays once, when someone has agreed."""

    def pay_or_end(request: ChatRequest) -> Any:
        """By the conversation alone, so that every process gets the same."""
        return "Paid." if request.messages[-1].role == "tool" else [("pay", {})]

    def make_session(session_id: str) -> AmplifierSession:
        pay = EffectTool("pay", folder / f"{session_id}.effects", False)
        return agent(answering(pay_or_end, pay_or_end), pay, hooks=asking())(session_id)

    return make_session


class Denying:
    """An approval system that always denies."""

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        return "Deny"


@asynccontextmanager
async def working(
    engine: DurableEngine,
    make_session: Callable[[str], AmplifierSession],
    *,
    seconds: float | None = 120,
    **options: Any,
) -> AsyncIterator[None]:
    """A worker in this process, until the block is left; what the block waits for has to come in time."""
    async with anyio.create_task_group() as group:
        await group.start(partial(engine.work, make_session, **options))
        with anyio.fail_after(seconds):
            yield
        group.cancel_scope.cancel()


async def die_with(engine: Any, turn_id: str, times: int) -> None:
    """Note that so many workers have died with a turn that waits for the next one."""
    await engine._do(lambda: engine._turns.mark(turn_id, attempt=times, deaths=times))


def answering(*answers: Any) -> MockProvider:
    """A model with these answers."""
    return MockProvider(list(answers))


def tool(name: str, respond: Callable[[Any], Any], repeatable: bool | None = None) -> MockTool:
    """A tool with this behaviour."""
    made = MockTool(name, respond=respond)
    if repeatable is not None:
        made.repeatable = repeatable  # type: ignore[attr-defined]  # optional member of the contract
    return made


def hanging(name: str = "hang", repeatable: bool | None = None) -> tuple[MockTool, anyio.Event]:
    """A tool whose calls never end, and an event that is set when one begins."""
    begun = anyio.Event()

    async def hang(given: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    return tool(name, hang, repeatable), begun


async def hand_over(
    engine: DurableEngine, name: str = "hang", repeatable: bool | None = None
) -> MockTool:
    """Run the open turn with a model that calls a `hanging` tool, until that has begun; returns the tool."""
    hang, begun = hanging(name, repeatable)
    async with working(engine, agent(answering([(name, {})]), hang)):
        await begun.wait()
    return hang


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> None:
    """Wait for what another process or a library does, and which can only be asked for again and again."""
    with anyio.fail_after(seconds):
        while True:
            if await condition():
                return
            await anyio.sleep(0.01)


async def until(
    engine: DurableEngine, turn_id: str, condition: Callable[[TurnStatus], Any]
) -> TurnStatus:
    """The status of a turn as soon as it meets a condition; the store can only be asked again and again."""
    with anyio.fail_after(30):
        while True:
            status = await engine.status(turn_id)
            if condition(status):
                return status
            await anyio.sleep(0.01)
