"""tool-task: agents in child sessions that inherit what they must and nothing else, and end with whoever asked."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import jsonschema_rs
import pytest

from amplifier import AmplifierSession, ModuleLoader
from amplifier.contracts import Tool, tool_schema
from amplifier.errors import (
    AuthenticationError,
    ExecutionCancelled,
    MisspellingWarning,
)
from amplifier.models import ChatResponse, TextBlock, ToolCallBlock, ToolResult, Usage
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.tools import task as tool_task
from amplifier.testing import (
    MODES,
    EventRecorder,
    MockProvider,
    MockTool,
    cancel_everywhere,
)


def answer(
    text: str = "", *, tokens: tuple[int, int] = (10, 5), cost: str | None = None, call: Any = None
) -> ChatResponse:
    blocks: list[Any] = [TextBlock(text=text)] if text else []
    if call is not None:
        blocks.append(ToolCallBlock(id=f"call-{text}-{tokens[0]}", name=call[0], input=call[1]))
    used = Usage(
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        total_tokens=sum(tokens),
        cost_usd=None if cost is None else Decimal(cost),
    )
    return ChatResponse(content=blocks, usage=used)


def task(agent: str = "helper", instruction: str = "do it") -> tuple[str, dict[str, Any]]:
    return "task", {"agent": agent, "instruction": instruction}


class Family:
    """A parent and the children its agents open; every provider's script is written beforehand.

    Args:
        parent: The parent's model.
        children: Models of agents, by agent.
        agents: More of an agent's overlay.
    """

    def __init__(
        self,
        parent: Any,
        children: dict[str, Any],
        *,
        agents: dict[str, dict[str, Any]] | None = None,
        config: dict[str, Any] | None = None,
        tools: list[MockTool] | None = None,
        session: dict[str, Any] | None = None,
        hooks: dict[str, Any] | None = None,
    ) -> None:
        self.sessions: list[Any] = []
        self.recorder = EventRecorder()
        self.providers = {"parent": _provider(parent)} | {
            name: _provider(turns) for name, turns in children.items()
        }
        modules: dict[str, Any] = {
            "loop-basic": loop_basic,
            "context-simple": context_simple,
            "tool-task": tool_task,
        }
        modules |= {"hooks-watch": self._watch, **(hooks or {})}
        for name, provider in self.providers.items():
            modules[f"provider-{name}"] = _mounting("providers", provider)
        for tool in tools or []:
            modules[f"tool-{tool.name}"] = _mounting("tools", tool)
        self.plan: dict[str, Any] = {
            "session": {
                "orchestrator": "loop-basic",
                "context": "context-simple",
                "strict": True,
                **(session or {}),
            },
            "providers": [{"module": "provider-parent"}],
            "tools": [
                {"module": "tool-task", "config": config or {}},
                *(f"tool-{tool.name}" for tool in tools or []),
            ],
            "hooks": ["hooks-watch", *(hooks or {})],
            "agents": {
                name: {
                    "description": f"Helps as {name}.",
                    "providers": [f"provider-{name}"],
                    **(agents or {}).get(name, {}),
                }
                for name in children
            },
        }
        self.loader = ModuleLoader(modules=modules)

    async def _watch(self, coordinator: Any, config: Any) -> None:
        self.sessions.append(coordinator.session)
        coordinator.hooks.register("*", self._record)

    async def _record(self, event: str, data: dict[str, Any]) -> Any:
        if event == "task:agent_completed":
            await (
                anyio.lowlevel.checkpoint()
            )  # an observer that takes its time hears of the end all the same
        return await self.recorder(event, data)

    def open(self, **options: Any) -> AmplifierSession:
        return AmplifierSession(self.plan, loader=self.loader, session_id="parent", **options)

    async def run(self, prompt: str = "go", **options: Any) -> str:
        async with self.open(**options) as session:
            return await session.execute(prompt)

    async def result(self) -> dict[str, Any]:
        """What the only task of a turn came to."""
        await self.run()
        [result] = self.results()
        return result

    def results(self) -> list[dict[str, Any]]:
        return [
            data["result"]
            for event, data in self.recorder.events
            if event == "tool:post" and data["session_id"] == "parent"
        ]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [data for event, data in self.recorder.events if event == name]


def _provider(turns: Any) -> MockProvider:
    return turns if isinstance(turns, MockProvider) else MockProvider(turns)


def _mounting(point: str, thing: Any) -> Callable[..., Any]:
    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount(point, thing)

    return mount


# ── one task ─────────────────────────────────────────────────────────────────────────────────────


async def test_agent_answers_from_own_session():
    family = Family(
        [[task(instruction="count the files")], "thanks"],
        {"helper": [answer("seven", cost="0.25")]},
    )
    assert await family.run() == "thanks"
    [result] = family.results()
    assert result["success"]
    child = family.sessions[1]
    assert result["output"] == {
        "response": "seven",
        "agent": "helper",
        "session_id": child.session_id,
        "usage": {
            "model_calls": 1,
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "cost_usd": "0.25",
        },
    }
    assert child.parent_id == "parent"
    assert child.session_id.startswith("parent-")
    assert child.session_id.endswith("_helper")
    [request] = family.providers["helper"].requests
    assert [(message.role, message.content) for message in request.messages] == [
        ("user", "count the files")
    ]
    assert child.statistics().state == "closed"


async def test_child_plan_is_overlaid_by_agent():
    seen = MockTool("look", respond=lambda given: "seen")
    family = Family(
        [[task()], "done"],
        {"helper": [[("look", {})], "ok"]},
        agents={
            "helper": {"orchestrator": {"config": {"max_iterations": 7}}, "tools": ["tool-look"]}
        },
        tools=[seen],
    )
    await family.run()
    parent, child = family.sessions
    assert child.config["orchestrator"] == {"config": {"max_iterations": 7}}
    assert child.config["tools"] == ["tool-look"]
    assert child.config["hooks"] == parent.config["hooks"]
    assert "description" not in child.config
    assert len(seen.calls) == 1


@pytest.mark.parametrize(
    "overlay", [{"instruction": "Be brief."}, {"system": {"instruction": "Be brief."}}]
)
async def test_agent_instruction_precedes_task(overlay):
    family = Family([[task()], "done"], {"helper": ["ok"]}, agents={"helper": overlay})
    await family.run()
    [request] = family.providers["helper"].requests
    assert [(message.role, message.content) for message in request.messages] == [
        ("system", "Be brief."),
        ("user", "do it"),
    ]


async def test_events_frame_child_session():
    family = Family([[task()], "done"], {"helper": [answer("ok")]})
    async with family.open() as session:
        announced = await session.coordinator.collect_contributions("observability.events")
        assert ["task:agent_spawned", "task:agent_completed"] in announced
        await session.execute("go")
    names = [
        event
        for event, data in family.recorder.events
        if event.startswith("task:") or event == "session:fork"
    ]
    assert names == ["task:agent_spawned", "session:fork", "task:agent_completed"]
    [spawned], [completed] = (
        family.events("task:agent_spawned"),
        family.events("task:agent_completed"),
    )
    child = family.sessions[1].session_id
    assert (spawned["agent"], spawned["sub_session_id"], spawned["depth"]) == ("helper", child, 1)
    assert (completed["sub_session_id"], completed["success"], completed["status"]) == (
        child,
        True,
        "completed",
    )
    assert completed["usage"]["total_tokens"] == 15


async def test_agents_run_concurrently_up_to_limit():
    now, most, all_places_taken = 0, 0, anyio.Event()

    async def slowly(request: Any) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 3:
            all_places_taken.set()
        await all_places_taken.wait()
        await anyio.sleep(0.01)
        now -= 1
        return str(request.messages[-1].content)

    calls = [task("helper", f"number {n}") for n in range(6)]
    family = Family([calls, "done"], {"helper": [slowly] * 6}, config={"max_parallel": 3})
    await family.run()
    assert [result["output"]["response"] for result in family.results()] != []
    assert sorted(result["output"]["response"] for result in family.results()) == [
        f"number {n}" for n in range(6)
    ]
    assert len({result["output"]["session_id"] for result in family.results()}) == 6
    assert most == 3


async def test_long_answer_is_cut_with_notice():
    family = Family([[task()], "done"], {"helper": ["x" * 500]}, config={"max_response_chars": 100})
    result = await family.result()
    assert result["output"]["response"] == "x" * 100
    assert (result["output"]["truncated"], result["output"]["total_chars"]) == (True, 500)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


async def test_unknown_agent_error_lists_agents():
    family = Family([[task("helpr")], "done"], {"helper": [], "other": []})
    result = await family.result()
    assert result["error"] == {
        "message": "there is no agent 'helpr'; did you mean 'helper'? Available: helper, other",
        "type": "UnknownAgent",
    }
    assert len(family.sessions) == 1


async def test_failed_child_keeps_text_and_cost():
    turns = [
        answer("half of it", call=("look", {})),
        AuthenticationError(
            "key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 refused", provider="x"
        ),
    ]
    family = Family([[task()], "done"], {"helper": turns}, tools=[MockTool("look")])
    result = await family.result()
    assert not result["success"]
    assert result["error"]["type"] == "AgentFailed"
    assert "AuthenticationError" in result["error"]["message"]
    assert "abcdefghijklmnop" not in result["error"]["message"]
    assert result["output"]["response"] == "half of it"
    assert result["output"]["usage"]["total_tokens"] == 15
    [completed] = family.events("task:agent_completed")
    assert (completed["success"], completed["status"], completed["error"]["type"]) == (
        False,
        "failed",
        "AgentFailed",
    )


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"providers": "nonsense"}, "PlanError"),
        ({"providers": [{"module": "provider-missing"}]}, "provider-missing"),
        ({"session": {"orchestrator": None}}, "session.orchestrator is required"),
    ],
)
async def test_agent_with_wrong_plan_is_error(overlay, words):
    family = Family([[task()], "done"], {"helper": []}, agents={"helper": overlay})
    assert await family.run() == "done"
    [result] = family.results()
    assert result["error"]["type"] == "AgentFailed"
    assert words in result["error"]["message"]


@pytest.mark.virtual_time
async def test_slow_child_ends_with_its_text():
    async def for_ever(request: Any) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    turns = [answer("so far", call=("look", {})), for_ever]
    family = Family(
        [[task()], "done"], {"helper": turns}, config={"timeout": 60}, tools=[MockTool("look")]
    )
    started = anyio.current_time()
    assert await family.run() == "done"
    assert anyio.current_time() - started == pytest.approx(60, abs=1)
    [result] = family.results()
    assert result["error"] == {
        "message": "the agent timed out after 60 s",
        "type": "Timeout",
    }
    assert result["output"]["response"] == "so far"
    assert result["output"]["usage"]["model_calls"] == 1
    assert family.sessions[1].statistics().state == "closed"


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────


async def test_immediate_parent_stop_counts_ended_child():
    family: Family

    async def stop(request: Any) -> str:
        family.sessions[0].coordinator.cancellation.request_immediate()
        await anyio.sleep_forever()
        raise AssertionError

    turns = [answer("paid for", call=("look", {})), stop]
    family = Family([[task()]], {"helper": turns}, tools=[MockTool("look")])
    async with family.open() as session:
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
        assert family.sessions[1].statistics().state == "closed"
        messages = await session.coordinator.get("context").get_messages()
    assert family.results() == []  # the call was cancelled, it did not answer
    [completed] = family.events("task:agent_completed")
    assert (completed["status"], completed["usage"]["total_tokens"]) == ("cancelled", 15)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]


async def test_stop_at_child_opening_stops_call():
    async def mount(coordinator: Any, config: Any) -> None:
        def stop(event: str, data: Any) -> None:
            family.sessions[0].coordinator.cancellation.request_immediate()

        coordinator.hooks.register("session:fork", stop)

    family = Family([[task()]], {"helper": []}, hooks={"hooks-stop": mount})
    with pytest.raises(ExecutionCancelled):
        await family.run()
    assert family.results() == []


async def test_graceful_parent_stop_reaches_child():
    family: Family

    def stop(given: Any) -> str:
        family.sessions[0].coordinator.cancellation.request_graceful()
        return "looked"

    family = Family(
        [[task()]],
        {"helper": [answer("so far", call=("look", {}))]},
        tools=[MockTool("look", respond=stop)],
    )
    async with family.open() as session:
        await session.execute("go")
    [result] = family.results()
    assert result["error"] == {
        "message": "the agent was asked to stop before it had finished",
        "type": "Stopped",
    }
    assert result["output"]["response"] == "so far"


async def test_lone_child_stop_is_failure():
    family: Family

    async def stop(request: Any) -> str:
        family.sessions[1].coordinator.cancellation.request_immediate()
        await anyio.sleep_forever()
        raise AssertionError

    family = Family([[task()], "then without"], {"helper": [stop]})
    assert await family.run() == "then without"
    [result] = family.results()
    assert result["error"] == {"message": "the agent was stopped", "type": "Cancelled"}


@pytest.mark.parametrize("mode", MODES)
def test_family_cancelled_anywhere_keeps_usage(mode):
    def make() -> Any:
        family = Family(
            [[task(), task("other")], "done"],
            {"helper": [[("look", {})], answer("ok")], "other": ["fine"]},
            tools=[MockTool("look")],
        )

        def check() -> list[str]:
            problems = [
                f"{session!r} is not closed"
                for session in family.sessions
                if session.statistics().state != "closed"
            ]
            spawned, completed = (
                family.events("task:agent_spawned"),
                family.events("task:agent_completed"),
            )
            if len(completed) > len(spawned):
                problems.append("more ends than beginnings")
            begun = {session.session_id for session in family.sessions[1:]}
            if not begun <= {data["sub_session_id"] for data in completed}:
                problems.append("no event reported the end of a child that had begun")
            return problems

        async def scenario() -> None:
            await family.run()

        return scenario, check

    report = cancel_everywhere(make, modes=[mode], second_after=(1, 3))
    report.raise_if_broken()
    assert report.points[mode] > 10


# ── depth, budget, inheritance ───────────────────────────────────────────────────────────────────


async def test_deepest_child_lacks_tool():
    family = Family([[task()], "done"], {"helper": ["ok"]})
    await family.run()
    assert [tool.name for tool in family.providers["parent"].requests[0].tools] == ["task"]
    assert family.providers["helper"].requests[0].tools is None


async def test_tasks_nest_to_planned_depth():
    turns = [[task("helper", "deeper")], [task("helper", "deepest")], "bottom", "middle", "top"]
    family = Family([[task()], "done"], {"helper": turns}, config={"max_depth": 3})
    await family.run()
    assert [len(session.session_id.split("_helper")) for session in family.sessions] == [1, 2, 3, 4]
    assert [data["depth"] for data in family.events("task:agent_spawned")] == [1, 2, 3]
    [result] = family.results()
    assert result["output"]["response"] == "top"
    offered = [bool(request.tools) for request in family.providers["helper"].requests]
    assert offered == [True, True, False, True, True]


async def test_grandchild_usage_counts_once_per_level():
    turns = [
        answer(call=task("helper", "deeper"), tokens=(100, 1), cost="1"),
        answer("bottom", tokens=(10, 1), cost="0.1"),
        answer("top", tokens=(1000, 1), cost="2"),
    ]
    family = Family([[task()], "done"], {"helper": turns}, config={"max_depth": 2})
    await family.run()
    inner, outer = family.events("task:agent_completed")
    assert inner["usage"] == {
        "model_calls": 1,
        "input_tokens": 10,
        "output_tokens": 1,
        "total_tokens": 11,
        "cost_usd": "0.1",
    }
    assert outer["usage"] == {
        "model_calls": 3,
        "input_tokens": 1110,
        "output_tokens": 3,
        "total_tokens": 1113,
        "cost_usd": "3.1",
    }


async def test_capabilities_are_passed_on_by_name():
    family = Family([[task()], "done"], {"helper": ["ok"]})
    async with family.open() as session:
        session.coordinator.register_capability("session.working_dir", "here")
        session.coordinator.register_capability("my.secret", "mine")
        await session.execute("go")
    child = family.sessions[1].coordinator
    assert child.get_capability("session.working_dir") == "here"
    assert child.get_capability("my.secret") is None
    assert child.get_capability("self_delegation_depth") == 1


# ── other ways in ────────────────────────────────────────────────────────────────────────────────


async def test_application_may_open_children_itself():
    asked: list[dict[str, Any]] = []

    async def spawn(
        agent_name: str, instruction: str, parent_session: Any, sub_session_id: str
    ) -> dict[str, Any]:
        asked.append(
            {"agent": agent_name, "instruction": instruction, "parent": parent_session.session_id}
        )
        return {"output": "my way", "session_id": "mine"}

    family = Family([[task()], "done"], {"helper": []})
    async with family.open() as session:
        session.coordinator.register_capability("session.spawn", spawn)
        await session.execute("go")
    assert asked == [{"agent": "helper", "instruction": "do it", "parent": "parent"}]
    [result] = family.results()
    assert (result["output"]["response"], result["output"]["session_id"]) == ("my way", "mine")
    assert len(family.sessions) == 1


@pytest.mark.parametrize(
    "wrong", [lambda **given: 1 / 0, lambda **given: "text", lambda task: {"output": task}]
)
async def test_faulty_custom_opening_is_failure(wrong):
    family = Family([[task()], "done"], {"helper": []})
    async with family.open() as session:
        session.coordinator.register_capability("session.spawn", wrong)
        assert await session.execute("go") == "done"
    [result] = family.results()
    assert result["success"] == (result["output"]["response"] == "do it")


async def test_agents_are_found_as_capabilities():
    family = Family(["unused"], {"helper": ["from afar"], "other": []})
    async with family.open() as session:
        get = session.coordinator.get_capability
        assert await get("agents.list")() == ["helper", "other"]
        overlay = await get("agents.get")("helper")
        assert overlay == {"providers": ["provider-helper"]}
        overlay["providers"].clear()
        assert await get("agents.get")("helper") == {"providers": ["provider-helper"]}
        assert await get("agents.get")("unknown") == {}
        assert await get("agents.spawn")("helper", "a task") == "from afar"
        with pytest.raises(Exception, match="there is no agent 'unknown'"):
            await get("agents.spawn")("unknown", "a task")


@pytest.mark.parametrize("agents", [None, {}, "all", {"dirs": ["x"]}, {1: {}}])
async def test_tool_without_agents_is_not_offered(agents):
    family = Family(["alone"], {})
    family.plan["agents"] = agents
    assert await family.run() == "alone"
    assert family.providers["parent"].requests[0].tools is None


async def test_misspelt_agent_section_suggests_known_name(caplog):
    family = Family(["alone"], {})
    family.plan["agents"] = {"helper": {"toools": [], "owner": "me", "tool": [], "tools": []}}
    with pytest.warns(MisspellingWarning) as caught:
        await family.run()
    assert sorted(str(each.message) for each in caught) == [
        "tool-task: $.agents.helper.tool: unknown key, ignored; did you mean 'tools'?",
        "tool-task: $.agents.helper.toools: unknown key, ignored; did you mean 'tools'?",
    ]
    assert all(str(each.message) in caplog.text for each in caught)
    assert "owner" not in caplog.text


# ── the tool contract ────────────────────────────────────────────────────────────────────────────


async def test_tool_describes_itself_and_agents():
    family = Family(
        [], {"helper": [], "other": []}, agents={"other": {"description": "Does\n  the rest."}}
    )
    async with family.open() as session:
        assert isinstance(session.coordinator.get("tools", "task"), Tool)
        tool: Any = session.coordinator.get("tools", "task")
        assert tool.description.endswith(
            "Agents:\n- helper: Helps as helper.\n- other: Does the rest."
        )
        jsonschema_rs.meta.validate(tool_schema(tool) or {})
        for given_input in (
            None,
            {},
            {"agent": "helper"},
            {"agent": 1, "instruction": "x"},
            {"agent": "helper", "instruction": ""},
        ):
            result: ToolResult = await tool.execute(given_input)
            assert (result.error or {})["type"] == "InvalidInput"
            assert not jsonschema_rs.is_valid(tool.input_schema, given_input)


@pytest.mark.parametrize(
    "data",
    [{"usage": None}, {"usage": {"input_tokens": "x", "output_tokens": -3, "cost_usd": "NaN"}}],
)
async def test_usage_counting_never_fails(data):
    async def mount(coordinator: Any, config: Any) -> None:
        async def report(event: str, _: Any) -> None:
            await coordinator.hooks.emit("provider:response", data)

        if coordinator.parent_id is not None:
            coordinator.hooks.register("provider:request", report)

    family = Family([[task()], "done"], {"helper": [answer("ok")]}, hooks={"hooks-report": mount})
    result = await family.result()
    assert result["output"]["usage"]["total_tokens"] == 15
