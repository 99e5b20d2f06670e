"""Agents among the tools of an agent, and agents that cannot be opened."""

from __future__ import annotations

import logging
import sys
from typing import Any

import anyio
import pytest

from amplifier import (
    AmplifierError,
    AmplifierSession,
    ApprovalQuestion,
    ExecutionCancelled,
    ExecutionTimeout,
    HookResult,
    ModuleLoadError,
    PlanError,
    agent,
    on,
)
from amplifier.cli._exit_codes import CommandError
from amplifier.cli.agent.default_plan import _provider_id
from amplifier.models import SubAgentEvent, TextDelta, ToolFinished, TurnEvent
from amplifier.testing import MockProvider, MockTool

pytestmark = pytest.mark.virtual_time


def delegating(name: str, *rest: Any) -> MockProvider:
    return MockProvider(
        [("task", {"agent": name, "instruction": "find it"}), *(rest or ("Done.",))]
    )


def researcher(provider: Any, **options: Any) -> AmplifierSession:
    return agent(provider, **{"name": "researcher", "description": "Finds facts.", **options})


def results_of(session: AmplifierSession) -> list[Any]:
    assert session.last_turn is not None
    return [use.output for use in session.last_turn.tool_calls]


async def test_agent_among_tools_is_sub_agent():
    inner, outer = MockProvider(["It is 42."]), delegating("researcher")
    sub = researcher(inner, instructions="Be exact.", tools=[MockTool("look")])
    async with agent(outer, tools=[sub, MockTool("own")], instructions="Delegate.") as session:
        assert await session.execute("What is it?") == "Done."
        (output,) = results_of(session)
    assert output["response"] == "It is 42."
    assert [message.content for message in inner.requests[0].messages] == ["Be exact.", "find it"]
    assert [spec.name for spec in inner.requests[0].tools] == ["look"]
    specs = {spec.name: spec.description for spec in outer.requests[0].tools}
    assert specs.keys() == {"own", "task"}
    assert "researcher: Finds facts." in specs["task"]


async def test_sub_agent_inherits_no_instructions():
    inner = MockProvider(["x"])
    async with agent(
        delegating("researcher"), tools=[researcher(inner)], instructions="Delegate."
    ) as session:
        await session.execute("go")
    assert [message.content for message in inner.requests[0].messages] == ["find it"]


def flat(event: TurnEvent) -> tuple[list[str], TurnEvent]:
    path = []
    while isinstance(event, SubAgentEvent):
        path.append(event.agent)
        event = event.event
    return path, event


async def test_sub_agent_inherits_no_configuration():
    sub = researcher(MockProvider([("look", {}), ("look", {}), "found"]), tools=[MockTool("look")])
    given = {
        "orchestrator": {"config": {"max_iterations": 2}},
        "metadata": {"of": "the parent"},
        "raw": True,
    }
    seen: list[dict[str, Any]] = []

    @on("session:fork")
    async def note(event: str, data: dict[str, Any]) -> None:
        seen.append(data)

    model = delegating("researcher")
    async with agent(model, tools=[sub], plan={"session": given, "hooks": [note]}) as session:
        await session.execute("go")
        (output,) = results_of(session)
    assert output["response"] == "found"
    (forked,) = seen
    assert forked.keys().isdisjoint(("metadata", "raw"))


async def test_parent_deadline_covers_sub_agent():
    async def wait() -> None:
        """Waits."""
        await anyio.sleep_forever()

    sub = researcher(
        MockProvider([("wait", {})]), tools=[wait], plan={"session": {"deadlines": {"turn": 500}}}
    )
    plan = {"session": {"deadlines": {"turn": 5}}}
    async with agent(delegating("researcher"), tools=[sub], plan=plan) as session:
        began = anyio.current_time()
        with pytest.raises(ExecutionTimeout):
            await session.execute("go")
        assert anyio.current_time() - began < 500


async def test_sub_agent_events_carry_origin():
    reader = agent(
        MockProvider([("look", {}), "deep"]),
        tools=[MockTool("look")],
        name="reader",
        description="Reads.",
    )
    middle = researcher(delegating("reader", "middle"), tools=[reader])
    async with (
        agent(delegating("researcher", "top"), tools=[middle]) as session,
        session.stream("go") as events,
    ):
        streamed = [event async for event in events]
    seen, paths = (
        [flat(event) for event in streamed],
        {e.path for e in streamed if isinstance(e, SubAgentEvent)},
    )
    finished = [(path, event.tool_name) for path, event in seen if isinstance(event, ToolFinished)]
    assert finished == [(["researcher", "reader"], "look"), (["researcher"], "task"), ([], "task")]
    assert paths == {("researcher",), ("researcher", "reader")}
    own = [event.name for path, event in seen if not path]
    assert (
        own.count("session:start") == 1
    )  # what sub-agents emit is not taken for what the agent does
    assert not any(
        isinstance(event, TextDelta) and event.text in ("deep", "middle")
        for path, event in seen
        if not path
    )
    assert {event.data["session_id"] for path, event in seen if not path} == {session.session_id}


async def test_parent_gates_cover_sub_agents():
    asked: list[str] = []

    def decide(question: ApprovalQuestion) -> bool:
        asked.append(question.tool)
        return question.tool != "own"

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        return (
            HookResult(action="deny", reason="no")
            if data["tool_name"] == "forbidden"
            else HookResult()
        )

    tools = [MockTool("forbidden"), MockTool("own"), MockTool("allowed")]
    deep = agent(
        MockProvider([[("forbidden", {}), ("own", {}), ("allowed", {})], "deep"]),
        tools=tools,
        name="deep",
        description="Works.",
    )
    middle = researcher(delegating("deep"), tools=[deep])
    async with agent(
        delegating("researcher"), tools=[middle], approve=decide, hooks=[judge]
    ) as session:
        await session.execute("go")
    assert [bool(tool.calls) for tool in tools] == [False, False, True]
    assert "allowed" in asked


async def test_both_budgets_cover_sub_agent():
    calls: list[Any] = [[("own", {})]] * 3
    tool = MockTool("own")
    sub = researcher(MockProvider([*calls, "x"]), tools=[tool], budget={"tool_calls": 1})
    async with agent(delegating("researcher"), tools=[sub], budget={"tool_calls": 10}) as session:
        await session.execute("go")
        assert session.budget is not None
        assert session.budget.used.tool_calls == 2  # the task, and the one call of the sub-agent
        assert session.last_turn is not None
        (use,) = session.last_turn.tool_calls
    assert not use.success
    assert len(tool.calls) == 1


async def test_stopped_parent_ends_sub_agent():
    ended: list[str] = []

    async def wait() -> str:
        """Waits."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("inner")
        return ""

    sub = researcher(MockProvider([[("wait", {})]]), tools=[wait])
    async with (
        agent(delegating("researcher"), tools=[sub]) as session,
        anyio.create_task_group() as group,
    ):

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            session.coordinator.request_cancel(immediate=True)

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
    assert ended == ["inner"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": None},
            r"tools\[0\]: a sub-agent needs a name .* name='researcher', .* got name=None",
        ),
        ({"description": None}, r"needs a name and a description for the model that calls it"),
        ({"approve": "deny"}, r"has approve=…, but its parent's approval applies"),
        ({"memory": "talks"}, r"has memory=…, but each task begins a new conversation"),
    ],
)
def test_invalid_sub_agent_is_error(options, message):
    with pytest.raises(PlanError, match=message):
        agent("offline", tools=[researcher("offline", **options)])


def test_sub_agents_have_own_names():
    with pytest.raises(PlanError, match=r"tools\[1\]: two sub-agents have the name 'researcher'"):
        agent("offline", tools=[researcher("offline"), researcher("offline")])


async def test_self_containing_sub_agent_is_error():
    sub = researcher("offline")
    sub.config["tools"].append(sub)
    with pytest.raises(
        ModuleLoadError,
        match=r"sub-agent 'researcher' cannot be opened: \$\.tools\[0\] is not a tool: .*an agent",
    ):
        async with agent("offline", tools=[sub]):
            pass


async def test_tool_named_like_agent_call_is_error():
    async def task(text: str) -> str:
        """Does something."""
        return text

    with pytest.raises(
        AmplifierError, match=r"there is already a tool named 'task', .* @tool\(name='errand'\)"
    ):
        async with agent("offline", tools=[task, researcher("offline")]):
            pass


async def test_agent_in_plan_tools_is_error():
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True}}
    with pytest.raises(
        AmplifierError,
        match=r"\$\.tools\[0\] is not a tool: .*an agent is a tool in agent\(…, tools",
    ):
        async with AmplifierSession({**plan, "tools": [researcher("offline")]}):
            pass


# ── failing at opening ──


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("anthropic:claude-x", r"export ANTHROPIC_API_KEY=\.\.\."),
        ("openai:gpt-x", r"export OPENAI_API_KEY=\.\.\."),
    ],
)
async def test_missing_key_fails_at_opening(model, line, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModuleLoadError, match=line) as caught:
        async with agent(model):
            pass
    assert caught.value.reason_code == "not_configured"


@pytest.mark.parametrize("is_deep", [False, True])
async def test_missing_sub_agent_key_fails_with_parent(is_deep, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    sub = researcher("anthropic:claude-x")
    if is_deep:
        sub = agent("offline", tools=[sub], name="chief", description="Delegates.")
    names = r"'chief' cannot be opened: sub-agent 'researcher'" if is_deep else "'researcher'"
    with pytest.raises(
        ModuleLoadError,
        match=rf"sub-agent {names} cannot be opened: .*export ANTHROPIC_API_KEY=\.\.\.",
    ) as caught:
        async with agent("offline", tools=[sub]):
            pass
    assert caught.value.reason_code == "not_configured"


async def test_sub_agent_opens_for_parent_and_tasks():
    opened: list[str] = []
    heard: list[str] = []

    @on("*")
    async def hear(event: str, data: dict[str, Any]) -> None:
        heard.append(event)

    def counted(name: str):
        async def mount(coordinator: Any, config: Any) -> Any:
            opened.append(name)
            return lambda: opened.append(f"{name} closed")

        return mount

    reader = agent(
        MockProvider(["deep"]),
        tools=[counted("reader")],
        hooks=[hear],
        name="reader",
        description="Reads.",
    )
    middle = researcher(delegating("reader", "middle"), tools=[reader, counted("researcher")])
    async with agent(delegating("researcher", "top"), tools=[middle]) as session:
        assert opened == ["researcher", "reader", "reader closed", "researcher closed"]
        assert heard == []
        opened.clear()
        await session.execute("go")
        assert opened == ["researcher", "reader", "reader closed", "researcher closed"]


@pytest.mark.parametrize(
    ("model", "missing", "extra"),
    [("anthropic:claude-x", "httpx", "anthropic"), ("openai:gpt-x", "httpx", "openai")],
)
async def test_missing_extra_fails_at_opening(model, missing, extra, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-test")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "amplifier.modules.providers._http_client", raising=False)
    with pytest.raises(AmplifierError, match=rf"pip install 'amplifier\[{extra}\]'"):
        async with agent(model):
            pass


async def test_declining_foreign_provider_fails_at_opening():
    async def mount(coordinator, config):
        logging.getLogger("other").warning("no key")

    with pytest.raises(
        AmplifierError, match=r"no provider is mounted: .* declined; the reason is in the log"
    ):
        async with agent({"module": mount}):
            pass
    async with AmplifierSession(
        {
            "session": {"orchestrator": "loop-basic", "context": "context-simple"},
            "providers": [mount],
        }
    ) as session:
        assert session.failures == []


def test_misspelt_command_line_provider_is_recognised():
    with pytest.raises(
        CommandError, match=r"no provider 'antropic' is installed; .*; did you mean 'anthropic'\?"
    ):
        _provider_id("antropic", ["provider-anthropic", "provider-openai"])
