"""The three loops share one turn: what it does with the model, tools, hooks and stops, and what each loop does alone."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

import anyio
import pytest

from amplifier import (
    AmplifierSession,
    ExecutionCancelled,
    HookResult,
    ModuleLoader,
    RateLimitError,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
)
from amplifier.errors import AuthenticationError, ExecutionDenied, ProviderUnavailableError
from amplifier.models import ContextInjection, ResultDelta, ToolFinished, ToolStarted
from amplifier.testing import (
    EventRecorder,
    MockApprovalSystem,
    MockContextManager,
    MockProvider,
    MockTool,
)


class Agent:
    """A session around one loop, with everything it met at hand afterwards."""

    def __init__(
        self,
        loop: str,
        turns: list[Any],
        *tools: Any,
        config: dict[str, Any] | None = None,
        hooks: dict[str, Any] | None = None,
        approval: Any = None,
        context: Any = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.context: Any = context or MockContextManager()
        self.provider = MockProvider(turns)
        self.recorder = EventRecorder()
        orchestrator = {"module": loop, "config": {"initial_delay": 0, **(config or {})}}
        self._plan = {
            "session": {"orchestrator": orchestrator, "context": self.context, **(settings or {})}
        }
        self._tools, self._hooks, self._approval = tools, hooks or {}, approval

    @cached_property
    def session(self) -> AmplifierSession:
        plan = {
            **self._plan,
            "providers": [self.provider],
            "tools": ["tool-mock"],
            "hooks": ["hooks-test"],
        }
        loader = ModuleLoader(
            modules={"tool-mock": self._mount_tools, "hooks-test": self._mount_hooks}
        )
        return AmplifierSession(plan, loader=loader, approval_system=self._approval)

    async def _mount_tools(self, coordinator, config):
        for tool in self._tools:
            await coordinator.mount("tools", tool)

    async def _mount_hooks(self, coordinator, config):
        coordinator.hooks.register("*", self.recorder, priority=1000, name="recorder")
        for event, handler in self._hooks.items():
            coordinator.hooks.register(event, handler, name=f"test-{event}")

    async def run(self, prompt: str = "hello", **options: Any) -> Any:
        async with self.session as session:
            return await session.execute(prompt, **options)

    def names(self) -> list[str]:
        return [event for event, _ in self.recorder.get_events()]

    def data(self, event: str) -> list[dict[str, Any]]:
        return [data for name, data in self.recorder.get_events() if name == event]

    def broken_pairs(self) -> list[str]:
        """What is wrong with calls and results in the transcript (L5)."""
        problems: list[str] = []
        owed: list[str] = []
        for message in self.context.messages:
            if message["role"] == "tool":
                if not owed or message["tool_call_id"] != owed[0]:
                    problems.append(f"result {message['tool_call_id']} where {owed[:1]} was owed")
                else:
                    owed.pop(0)
            else:
                problems += [f"call {call} has no result" for call in owed]
                owed = [call["id"] for call in message.get("tool_calls", ())]
        return problems + [f"call {call} has no result" for call in owed]


async def test_events_follow_contract_order(loop):
    agent = Agent(loop, [("echo", {}), "done"], MockTool("echo"))
    await agent.run()
    names = [
        n
        for n in agent.names()
        if n.startswith(("execution:", "provider:", "tool:p", "orchestrator:", "prompt:"))
    ]
    assert names == [
        "execution:start",
        "prompt:submit",
        "provider:request",
        "provider:response",
        "tool:pre",
        "tool:post",
        "provider:request",
        "provider:response",
        "prompt:complete",
        "execution:end",
        "orchestrator:complete",
    ]
    assert agent.data("execution:end")[0]["status"] == "completed"
    assert (
        agent.data("orchestrator:complete")[0] | {"status": "success", "turn_count": 2}
        == agent.data("orchestrator:complete")[0]
    )


@pytest.mark.parametrize(
    ("call", "tool", "words", "kind"),
    [
        (
            ("nope", {}),
            MockTool("echo"),
            "there is no tool named 'nope'; available: echo",
            "UnknownTool",
        ),
        (("echo", {}), MockTool("echo", raises=ValueError("boom")), "boom", "ValueError"),
        (
            ("echo", {"n": "three"}),
            MockTool("echo", schema={"type": "object", "properties": {"n": {"type": "integer"}}}),
            "arguments do not fit",
            "BadArguments",
        ),
    ],
)
async def test_impossible_call_is_reported_to_model(loop, call, tool, words, kind):
    agent = Agent(loop, [call, "I see"], tool)
    assert await agent.run() == "I see"
    result = agent.context.messages[2]
    assert words in result["content"]
    assert agent.data("tool:error")[0]["error"]["type"] == kind
    assert "tool:post" not in agent.names()


@pytest.mark.virtual_time
async def test_overrunning_tool_is_cancelled_alone(
    loop,
):
    turns: list[Any] = [[("slow", {}), ("quick", {})], "done"]
    agent = Agent(
        loop, turns, MockTool("slow", delay=10_000), MockTool("quick"), config={"tool_timeout": 5}
    )
    assert await agent.run() == "done"
    assert "did not return within 5 s" in agent.context.messages[2]["content"]
    assert agent.context.messages[3]["content"] == "Success"


async def test_provider_cannot_change_approved_call(loop):
    given = ToolCall(id="c1", name="run", arguments={"command": {"run": "ls"}})

    async def judge(event: str, data: dict[str, Any]) -> None:
        assert data["tool_input"] == {"command": {"run": "ls"}}
        given.arguments["command"]["run"] = "rm -rf"
        given.arguments["more"] = True
        given.id = given.name = "changed"

    tool = MockTool("run")
    agent = Agent(loop, [("run", {}), "done"], tool, hooks={"tool:pre": judge})
    agent.provider.parse_tool_calls = lambda response: [given] if response.tool_calls else []  # type: ignore[method-assign]
    await agent.run()
    assert given.id == "changed"
    assert tool.last_input == {"command": {"run": "ls"}}
    assert agent.data("tool:post")[0]["tool_input"] == {"command": {"run": "ls"}}
    assert agent.context.messages[1]["tool_calls"][0]["arguments"] == {"command": {"run": "ls"}}
    assert agent.broken_pairs() == []


def change_output(result: ToolResult) -> None:
    result.output["items"].append("unseen")


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        (lambda: ToolResult(output={"items": ["seen"]}), change_output),
        (lambda: ToolResult(output="seen"), lambda result: setattr(result, "output", "unseen")),
        (
            lambda: ToolResult(content=[TextBlock(text="seen")]),
            lambda result: setattr(result.content[0], "text", "unseen"),
        ),
    ],
    ids=["a member of the output", "the output", "a block"],
)
async def test_tool_cannot_change_approved_result(loop, kept, change):
    result = kept()

    class Keeping:
        name, description = "keep", "keeps its result"

        async def execute(self, given):
            return result

    async def respond(given: dict[str, Any]) -> str:
        await (
            anyio.wait_all_tasks_blocked()
        )  # the other call has its result, which waits for this one's
        change(result)
        return "slow"

    agent = Agent(
        loop, [[("slow", {}), ("keep", {})], "done"], MockTool("slow", respond=respond), Keeping()
    )
    await agent.run()
    assert "seen" in str(agent.data("tool:post")[0]["result"])
    assert "unseen" in repr(result)
    assert "seen" in str(agent.context.messages[3]["content"])
    assert "unseen" not in str(agent.context.messages)


async def test_hook_cannot_change_its_replacement_result(loop):
    result = ToolResult(output={"items": ["seen"]})

    async def rewrite(event: str, data: dict[str, Any]) -> HookResult | None:
        if data["tool_name"] == "quick":
            return HookResult(action="modify", data={**data, "result": result})
        return None

    async def respond(given: dict[str, Any]) -> str:
        await anyio.wait_all_tasks_blocked()
        change_output(result)
        return "slow"

    tools = MockTool("slow", respond=respond), MockTool("quick")
    agent = Agent(
        loop, [[("slow", {}), ("quick", {})], "done"], *tools, hooks={"tool:post": rewrite}
    )
    await agent.run()
    assert agent.context.messages[3]["content"] == '{"items": ["seen"]}'


async def test_self_containing_result_is_stored_with_marker(loop):
    ring: list[Any] = ["seen"]
    ring.append(ring)
    agent = Agent(loop, [("ring", {}), "done"], MockTool("ring", output=ring))
    await agent.run()
    assert agent.context.messages[2]["content"] == '["seen", "[CIRCULAR]"]'


# ── hook_results ──


def answering(result: HookResult):
    async def handler(event: str, data: dict[str, Any]) -> HookResult:
        return result

    return handler


@pytest.mark.parametrize(
    ("event", "calls", "shown"),
    [("tool:pre", 0, "denied: secrets"), ("tool:post", 1, "the result was withheld: secrets")],
    ids=["the call", "its result"],
)
async def test_denied_call_or_result_explains_itself_only(loop, event, calls, shown):
    """The model gets the reason, and nothing of the content."""
    tool, gate = (
        MockTool("echo", output="secret"),
        answering(HookResult(action="deny", reason="secrets")),
    )
    agent = Agent(loop, [("echo", {}), "done"], tool, hooks={event: gate})
    await agent.run()
    assert tool.call_count == calls
    assert "secret" not in str(agent.provider.last_request).replace("secrets", "")
    assert agent.context.messages[2]["content"] == shown


async def test_hook_may_rewrite_one_as_true(loop):
    async def rewrite(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(
            action="modify", data={**data, "result": {**data["result"], "output": [True]}}
        )

    agent = Agent(
        loop,
        [("echo", {}), "done"],
        MockTool("echo", return_value=[1]),
        hooks={"tool:post": rewrite},
    )
    await agent.run()
    assert agent.context.messages[2]["content"] == "[true]"


async def test_tool_hook_injections_follow_results(loop):
    inject = answering(HookResult(action="inject_context", context_injection="mind the lint"))
    agent = Agent(
        loop,
        [[("a", {}), ("b", {})], "done"],
        MockTool("a"),
        MockTool("b"),
        hooks={"tool:post": inject},
    )
    await agent.run()
    roles = [m["role"] for m in agent.context.messages]
    assert roles == ["user", "assistant", "tool", "tool", "system", "system", "assistant"]
    assert agent.broken_pairs() == []


async def test_ephemeral_injections_are_shown_once(loop):
    result = HookResult(
        action="inject_context",
        context_injection="psst",
        ephemeral=True,
        append_to_last_tool_result=True,
    )
    agent = Agent(
        loop,
        [("a", {}), ("a", {}), "done"],
        MockTool("a", output="A"),
        hooks={"tool:post": answering(result)},
    )
    await agent.run()
    assert "psst" not in str(agent.context.messages)
    assert agent.provider.requests[1].messages[-1].content == "A\n\npsst"
    assert [str(r).count("psst") for r in agent.provider.requests] == [0, 1, 1]


@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize(
    "event", ["prompt:submit", "provider:request", "tool:selecting", "tool:pre", "tool:post"]
)
@pytest.mark.parametrize(("answer", "is_kept"), [("Allow", True), ("Deny", False)])
async def test_injections_are_dropped_on_user_denial(loop, event, answer, is_kept, ephemeral):
    if event == "tool:selecting" and loop != "loop-events":
        return
    item = ContextInjection(content="injected", ephemeral=ephemeral)
    question = HookResult(action="ask_user", approval_prompt="Go on?", context_injections=[item])
    approval = MockApprovalSystem([answer] * 2)
    agent = Agent(
        loop,
        [("a", {}), "done"],
        MockTool("a"),
        hooks={event: answering(question)},
        approval=approval,
    )
    with suppress(ExecutionDenied):
        await agent.run()
    shown = str(
        [agent.context.messages, *(request.messages for request in agent.provider.requests)]
    )
    assert ("injected" in shown) is is_kept
    assert ("injected" in str(agent.context.messages)) is (is_kept and not ephemeral)


async def test_injections_keep_order_during_late_approval(loop):
    class LateApproval:
        async def request_approval(self, *asked: Any) -> str:
            await anyio.wait_all_tasks_blocked()  # the hooks of the other call have injected by now
            return "Allow"

    async def inject(event: str, data: dict[str, Any]) -> HookResult:
        item = ContextInjection(content=data["tool_name"])
        if data["tool_name"] == begun[0]:
            return HookResult(
                action="ask_user", approval_prompt="Go on?", context_injections=[item]
            )
        return HookResult(action="inject_context", context_injections=[item])

    begun: list[str] = []
    turns: list[Any] = [[("a", {}), ("b", {})], "done"]
    agent = Agent(
        loop,
        turns,
        MockTool("a"),
        MockTool("b"),
        hooks={"tool:pre": inject},
        approval=LateApproval(),
    )
    agent.session.coordinator.hooks.register(
        "tool:pre", lambda _, data: begun.append(data["tool_name"]), priority=-1
    )
    await agent.run()
    assert [m["content"] for m in agent.context.messages if m["role"] == "system"] == begun


@pytest.mark.parametrize(
    ("event", "is_stored"), [("prompt:submit", False), ("provider:request", True)]
)
async def test_denied_prompt_ends_turn_with_reason(loop, event, is_stored):
    agent = Agent(loop, [], hooks={event: answering(HookResult(action="deny", reason="not today"))})
    with pytest.raises(ExecutionDenied, match="Operation denied: not today") as denied:
        await agent.run()
    assert (denied.value.event, denied.value.reason) == (event, "not today")
    assert agent.provider.call_count == 0
    assert [message["role"] for message in agent.context.messages] == ["user"] * is_stored
    assert agent.data("orchestrator:complete")[0]["status"] == "incomplete"


async def test_injection_before_request_is_included(loop):
    inject = answering(HookResult(action="inject_context", context_injection="today is Monday"))
    agent = Agent(loop, ["ok"], hooks={"provider:request": inject})
    await agent.run()
    assert "today is Monday" in str(agent.provider.requests[0].messages)


# ── the model ──


@pytest.mark.virtual_time
async def test_transient_error_is_retried_after_server_delay(loop):
    agent = Agent(loop, [RateLimitError("slow down", retry_after=30), "fine"])
    start = anyio.current_time()
    assert await agent.run() == "fine"
    assert anyio.current_time() - start >= 30
    retry = agent.data("provider:retry")[0]
    assert (retry["attempt"], retry["error_type"]) == (1, "RateLimitError")


@pytest.mark.virtual_time
async def test_graceful_stop_ends_retry_wait(loop):
    agent = Agent(loop, [RateLimitError("slow down", retry_after=100), "never"])

    async def stop() -> None:
        await anyio.sleep(10)
        agent.session.coordinator.cancellation.request_graceful()

    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        assert await agent.run() == ""
    assert 10 <= anyio.current_time() - start < 11
    assert agent.names().count("provider:retry") == agent.names().count("provider:error") == 1
    assert agent.data("execution:end")[0]["status"] == "cancelled"
    assert "provider:response" not in agent.names()


@pytest.mark.virtual_time
async def test_retry_delay_has_upper_limit(loop):
    agent = Agent(loop, [RateLimitError("come back tomorrow", retry_after=86_400), "fine"])
    start = anyio.current_time()
    with pytest.raises(RateLimitError, match="tomorrow"):
        await agent.run()
    assert anyio.current_time() - start < 1
    patient = Agent(
        loop, [RateLimitError("later", retry_after=600), "fine"], config={"max_retry_after": 600}
    )
    assert await patient.run() == "fine"


async def test_lasting_error_keeps_type_and_closing_events(loop):
    agent = Agent(loop, [AuthenticationError("bad key", provider="mock")])
    with pytest.raises(AuthenticationError, match="bad key"):
        await agent.run()
    assert agent.names()[-4:] == [
        "provider:error",
        "execution:end",
        "orchestrator:complete",
        "session:end",
    ]
    assert agent.data("execution:end")[0]["status"] == "error"


async def test_retries_end(loop):
    agent = Agent(
        loop,
        [RateLimitError("1"), RateLimitError("2"), RateLimitError("3")],
        config={"max_retries": 2},
    )
    with pytest.raises(RateLimitError, match="3"):
        await agent.run()


async def test_missing_provider_is_named(loop):
    agent = Agent(loop, [], config={"default_provider": "gone"})
    with pytest.raises(
        ProviderUnavailableError, match="no provider named 'gone' is mounted; mounted: mock"
    ):
        await agent.run()


# ── stopping ──


async def test_graceful_stop_lets_running_tools_finish(loop):
    agent: Agent

    async def respond(given: dict[str, Any]) -> str:
        agent.session.coordinator.cancellation.request_graceful()
        return "finished"

    agent = Agent(loop, [("echo", {})], MockTool("echo", respond=respond))
    await agent.run()
    assert agent.context.messages[-1]["content"] == "finished"
    assert agent.provider.call_count == 1
    assert agent.data("execution:end")[0]["status"] == "cancelled"
    assert agent.broken_pairs() == []


@pytest.mark.parametrize(("event", "asked"), [("tool:pre", 1), ("provider:request", 0)])
async def test_graceful_stop_in_hooks_starts_nothing(loop, event, asked):
    agent: Agent

    async def stop(event: str, data: dict[str, Any]) -> None:
        agent.session.coordinator.cancellation.request_graceful()

    echo = MockTool("echo", output="done")
    agent = Agent(loop, [("echo", {})], echo, hooks={event: stop})
    await agent.run()
    assert (agent.provider.call_count, echo.call_count) == (asked, 0)
    assert ("being stopped" in agent.context.messages[-1]["content"]) == bool(asked)
    assert agent.data("execution:end")[0]["status"] == "cancelled"
    assert agent.broken_pairs() == []


@pytest.mark.virtual_time
async def test_immediate_stop_keeps_result_per_call(loop):
    agent = Agent(
        loop,
        [[("quick", {}), ("slow", {}), ("slow", {})]],
        MockTool("quick", output="Q"),
        MockTool("slow", delay=10_000),
    )
    async with agent.session as session, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.sleep(1)
            session.coordinator.cancellation.request_immediate()

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
    results = [m["content"] for m in agent.context.messages if m["role"] == "tool"]
    assert results == ["Q", "cancelled while it was running", "cancelled while it was running"]
    assert agent.broken_pairs() == []
    finished = [
        d["tool_call_id"]
        for n, d in agent.recorder.get_events()
        if n in ("tool:post", "tool:error")
    ]
    assert sorted(finished) == ["call_1", "call_2", "call_3"]


# ── what only one of them does ──


async def test_stream_shows_tool_start_and_end(loop):
    agent = Agent(loop, [[("a", {"x": 1}), ("nope", {})], "done"], MockTool("a"))
    seen = []
    async with agent.session as session, session.stream("go") as events:
        async for event in events:
            seen.append(event)
    assert [(e.tool_name, e.tool_input) for e in seen if isinstance(e, ToolStarted)] == [
        ("a", {"x": 1})
    ]
    assert {(e.tool_name, e.success) for e in seen if isinstance(e, ToolFinished)} == {
        ("a", True),
        ("nope", False),
    }
    assert events.result == "done"


async def test_event_loop_hook_chooses_tool():
    async def choose(event: str, data: dict[str, Any]) -> HookResult:
        assert data["available_tools"] == ["a", "b"]
        return HookResult(action="modify", data={**data, "tool_name": "b"})

    a, b = MockTool("a"), MockTool("b")
    agent = Agent("loop-events", [("a", {}), "done"], a, b, hooks={"tool:selecting": choose})
    await agent.run()
    assert (a.call_count, b.call_count) == (0, 1)
    assert (
        agent.data("tool:selected")[0] | {"tool_name": "b", "source": "hook"}
        == agent.data("tool:selected")[0]
    )


async def refuse(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult(action="deny", reason="not that one")


async def ask(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult(action="ask_user", approval_prompt="Run it?")


@pytest.mark.parametrize("gate", [refuse, ask])
async def test_event_loop_hook_denies_choice(gate):
    tool, approval = MockTool("a"), MockApprovalSystem(["Deny"])
    agent = Agent(
        "loop-events", [("a", {}), "done"], tool, hooks={"tool:selecting": gate}, approval=approval
    )
    await agent.run()
    assert tool.call_count == 0
    assert agent.context.messages[2]["content"].startswith("denied: ")
    assert [agent.data(event) for event in ("tool:selected", "tool:pre")] == [[], []]
    assert [data["tool_name"] for data in agent.data("tool:error")] == ["a"]


# ── a stream that is cut ─────────────────────────────────────────────────────────────────────────


CUT = ProviderUnavailableError("the connection was lost")


async def told(*turns: Any, **options: Any) -> list[tuple[str, Any]]:
    """What listeners are told of one answer: deltas and resets, and the types of blocks that begin and end."""
    agent = Agent("loop-streaming", list(turns), **options)
    await agent.run()
    keys = {"content_block:delta": "block_index", "content_block:reset": "", "thinking:delta": ""}
    return [
        (data.get(keys[name], name.partition(":")[0]), data.get("discarded", data.get("delta")))
        for name, data in agent.recorder.get_events()
        if name in keys
    ]


def thinks(text: str) -> ThinkingBlock:
    return ThinkingBlock(thinking=text)


def void(text: str) -> tuple[str, str]:
    return "content_block", text


HELLO = [(0, "Hello "), (0, "wor")]
WORLD = [*HELLO, (0, "ld!")]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (
            [["Hello wor", CUT], "Hello world!"],
            [*HELLO, void("Hello wor"), (0, "Hello "), (0, "world!")],
        ),
        ([["Hello wor", CUT], CUT, "Hi!"], [*HELLO, void("Hello wor"), (0, "Hi!")]),
        ([CUT, ["Hello wor", CUT], "Hello"], [*HELLO, void("Hello wor"), (0, "Hello")]),
        ([["A", CUT], ["B", CUT], "B!"], [(0, "A"), void("A"), (0, "B"), void("B"), (0, "B!")]),
        (
            [["One", "Two", CUT], ["One", "Two!"]],
            [(0, "One"), (1, "Two"), void("OneTwo"), (0, "One"), (1, "Two!")],
        ),
    ],
)
async def test_repeated_answer_is_announced_and_begins_anew(attempts, expected):
    assert await told(*attempts) == expected


async def test_thinking_of_repeated_answer_begins_anew():
    thought = [(0, "let "), ("thinking", "let "), (0, "me"), ("thinking", "me")]
    assert await told([thinks("let me"), CUT], "No") == [*thought, void(""), (0, "No")]


async def test_tool_call_of_repeated_answer_runs_once():
    tool = MockTool("echo")
    agent = Agent(
        "loop-streaming",
        [["Look:", ("echo", {"a": 1}), CUT], ["Look:", ("echo", {"a": 1})], "done"],
        tool,
    )
    assert await agent.run() == "done"
    assert tool.calls == [{"a": 1}]
    starts = [
        data.get("metadata", {}).get("tool_name") for data in agent.data("content_block:start")
    ]
    assert starts == [None, "echo", None, "echo", None]
    assert [data["discarded"] for data in agent.data("content_block:reset")] == ["Look:"]


async def test_interrupted_typed_answer_is_read_anew():
    session_of = Agent(
        "loop-streaming", [['{"a": [1, 2', CUT], '{"a": [3]}'], config={"answer_mode": "native"}
    )
    values = []
    async with (
        session_of.session as session,
        session.stream("hi", result_type={"type": "object"}) as events,
    ):
        async for event in events:
            if isinstance(event, ResultDelta):
                values.append(event.value)
    assert values[-1] == events.result == {"a": [3]}
    assert {"a": [1, 2]} in values
