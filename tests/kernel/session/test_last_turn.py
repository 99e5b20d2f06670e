"""What a turn was: ``session.last_turn`` and ``session.messages()``, for every loop and every end of a turn."""

from __future__ import annotations

import gc
import weakref
from decimal import Decimal
from typing import Any

import anyio
import attrs
import pytest

from amplifier import (
    AmplifierSession,
    ExecutionCancelled,
    ExecutionTimeout,
    HookResult,
    LLMError,
    SessionStateError,
    ToolResult,
    Usage,
    on,
)
from amplifier.errors import ExecutionDenied
from amplifier.models import ChatResponse, TextBlock, ToolCall
from amplifier.models.turns import TurnReport
from amplifier.testing import MockProvider, MockTool

pytestmark = pytest.mark.virtual_time

LOOPS = ["loop-basic", "loop-streaming", "loop-events"]


@attrs.frozen
class Weather:
    city: str


def asking(*calls: tuple[str, str, dict[str, Any]]) -> ChatResponse:
    made = [ToolCall(id=call_id, name=name, arguments=given) for call_id, name, given in calls]
    usage = Usage(
        input_tokens=10,
        output_tokens=2,
        total_tokens=12,
        cache_read_tokens=3,
        cost_usd=Decimal("0.25"),
    )
    return ChatResponse(
        content=[],
        tool_calls=made,
        usage=usage,
        finish_reason="tool_use",
        metadata={"model": "m-1"},
    )


def saying(text: str) -> ChatResponse:
    usage = Usage(input_tokens=20, output_tokens=4, total_tokens=24, cost_usd=Decimal("0.50"))
    return ChatResponse(
        content=[TextBlock(text=text)],
        usage=usage,
        finish_reason="end_turn",
        metadata={"model": "m-2"},
    )


def plan_of(
    provider: Any, *tools: Any, loop: str = "loop-basic", hooks: Any = ()
) -> dict[str, Any]:
    session = {"orchestrator": loop, "context": "context-simple", "strict": True}
    return {"session": session, "providers": [provider], "tools": list(tools), "hooks": list(hooks)}


def last_turn_of(session: AmplifierSession) -> TurnReport:
    assert session.last_turn is not None
    return session.last_turn


async def look(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult()


@on("tool:post", fields=("tool_name",))
async def look_at_a_field(event: str, data: dict[str, Any]) -> HookResult:
    assert "result" not in data
    return HookResult()


@pytest.mark.parametrize(
    "hooks", [[], [on("*")(look)], [look_at_a_field]], ids=["unheard", "heard", "some fields"]
)
@pytest.mark.parametrize("loop", LOOPS)
async def test_turn_with_tools_is_reported_whole(loop, hooks):
    answers = [asking(("1", "a", {"x": 1}), ("2", "b", {}), ("3", "none", {})), saying("Done.")]
    failing = MockTool("b", error="broken")
    plan = plan_of(
        MockProvider(answers), MockTool("a", return_value={"y": 2}), failing, loop=loop, hooks=hooks
    )
    async with AmplifierSession(plan) as session:
        assert session.last_turn is None
        assert await session.execute("go") == "Done."
        turn = last_turn_of(session)
        assert turn is session.last_turn
        assert turn.messages == await session.messages()
    assert (turn.text, turn.value, turn.error) == ("Done.", "Done.", None)
    assert (turn.stop_reason, turn.model) == ("end_turn", "m-2")
    assert (turn.usage.input_tokens, turn.usage.output_tokens, turn.usage.cache_read_tokens) == (
        30,
        6,
        3,
    )
    assert turn.cost == Decimal("0.75")
    assert [(use.tool, use.arguments, use.success) for use in turn.tool_calls] == [
        ("a", {"x": 1}, True),
        ("b", {}, False),
        ("none", {}, False),
    ]
    assert turn.tool_calls[0].output == {"y": 2}
    assert "broken" in turn.tool_calls[1].error
    assert "there is no tool named 'none'" in turn.tool_calls[2].error
    assert all(0 <= use.seconds <= turn.seconds for use in turn.tool_calls)
    assert [message["role"] for message in turn.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant",
    ]


@pytest.mark.parametrize("loop", LOOPS)
async def test_streamed_and_typed_turns_report_the_same(loop):
    texts = ["Rain.", '{"city": "Oslo"}']
    async with AmplifierSession(
        plan_of(MockProvider([saying(text) for text in texts]), loop=loop)
    ) as session:
        async with session.stream("one") as events:
            assert [event async for event in events]
            assert session.last_turn is None or session.last_turn.text == "Rain."
        assert last_turn_of(session).text == "Rain."
        assert await session.execute("two", result_type=Weather) == Weather("Oslo")
        turn = last_turn_of(session)
        assert turn.value == Weather("Oslo")
        assert turn.text == texts[1]
        assert turn.messages == (await session.messages())[2:]


# ── turns that do not end well ──


@pytest.mark.parametrize("loop", LOOPS)
async def test_failed_turn_keeps_its_work(loop):
    provider = MockProvider([asking(("1", "a", {})), LLMError("no")])
    async with AmplifierSession(plan_of(provider, MockTool("a"), loop=loop)) as session:
        with pytest.raises(LLMError):
            await session.execute("go")
        turn = last_turn_of(session)
    assert (turn.stop_reason, turn.error, turn.value) == ("error", "LLMError: no", None)
    assert [use.success for use in turn.tool_calls] == [True]
    assert turn.usage.total_tokens == 12


class Stopping:
    """A tool that stops its turn, or never returns."""

    name = "stop"
    description = "Stops."

    def __init__(self, how: str) -> None:
        self.how = how
        self.session: Any = None

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        if self.how == "immediate":
            self.session.coordinator.request_cancel(immediate=True)
        elif self.how == "graceful":
            self.session.coordinator.request_cancel()
            return ToolResult(output="asked")
        await anyio.sleep_forever()
        raise AssertionError("not reached")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("how", "error", "reason"),
    [
        ("immediate", ExecutionCancelled, "cancelled"),
        ("late", ExecutionTimeout, "timeout"),
        ("graceful", None, "cancelled"),
    ],
)
async def test_stopped_turn_keeps_reason(loop, how, error, reason):
    tool = Stopping(how)
    answers = [asking(("1", "stop", {})), saying("not asked")][: 1 if how == "graceful" else 2]
    async with AmplifierSession(plan_of(MockProvider(answers), tool, loop=loop)) as session:
        tool.session = session
        if error is None:
            await session.execute("go")
        else:
            with pytest.raises(error):
                await session.execute("go", timeout=60 if how == "late" else None)
        turn = last_turn_of(session)
        assert turn.messages == await session.messages()
    assert turn.stop_reason == reason
    (use,) = turn.tool_calls
    assert use.success is (error is None)
    assert use.ended_at is not None
    assert (turn.error is None) is (error is None)


PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize("how", ["execute", "stream", "stream_text"])
@pytest.mark.parametrize("hooks", [[], [on("*")(look)]], ids=["unheard", "heard"])
@pytest.mark.parametrize("loop", LOOPS)
async def test_prompt_images_are_always_reported(loop, hooks, how):
    async with AmplifierSession(
        plan_of(MockProvider([saying("a cat")]), loop=loop, hooks=hooks)
    ) as session:
        prompt: list[Any] = ["What is this?", PIXEL]
        if how == "execute":
            await session.execute(prompt)
        elif how == "stream":
            async with session.stream(prompt) as events:
                async for _ in events:
                    pass
        else:
            assert [piece async for piece in session.stream_text(prompt)]
        assert last_turn_of(session).messages == await session.messages()
        assert last_turn_of(session).messages[0]["content"][1] == PIXEL


@pytest.mark.parametrize("loop", LOOPS)
async def test_prompt_blocks_are_reported_after_hooks(loop):
    @on("prompt:submit")
    async def change(event, data):
        return HookResult(
            action="modify",
            data={**data, "prompt": "better", "attachments": data["attachments"][1:]},
        )

    async with AmplifierSession(
        plan_of(MockProvider([saying("x")]), loop=loop, hooks=[change])
    ) as session:
        await session.execute(["good", PIXEL, {**PIXEL, "title": "second"}])
        content = last_turn_of(session).messages[0]["content"]
        assert content == (await session.messages())[0]["content"]
        assert content == [{"type": "text", "text": "better"}, {**PIXEL, "title": "second"}]


# ── hooks and other loops ──


async def test_report_shows_hook_changes():
    @on("tool:pre", gate=True)
    async def judge(event, data):
        return HookResult(action="deny", reason="no") if data["tool_name"] == "a" else HookResult()

    @on("tool:post")
    async def hide(event, data):
        if data["tool_name"] == "b":
            return HookResult(action="deny", reason="secret")
        return HookResult(
            action="modify", data={**data, "result": {**data["result"], "output": "changed"}}
        )

    provider = MockProvider(
        [asking(("1", "a", {}), ("2", "b", {}), ("3", "c", {})), saying("Done.")]
    )
    plan = plan_of(provider, MockTool("a"), MockTool("b"), MockTool("c"), hooks=[judge, hide])
    async with AmplifierSession(plan) as session:
        await session.execute("go")
        uses = {use.tool: use for use in last_turn_of(session).tool_calls}
    assert (uses["a"].success, uses["a"].error) == (False, "denied: no")
    assert (uses["b"].success, uses["b"].output) == (False, None)
    assert (uses["c"].success, uses["c"].output) == (True, "changed")


@pytest.mark.parametrize("event", ["prompt:submit", "provider:request"])
@pytest.mark.parametrize("asks", [False, True])
async def test_denial_returned_by_foreign_loop_is_denial(event, asks):
    class Loop:
        async def execute(self, prompt, hooks, coordinator):
            result = await hooks.emit(event, {"prompt": prompt})
            result = await coordinator.process_hook_result(result, event, "orchestrator")
            return (
                f"Operation denied: {result.reason}"
                if result.action == "deny" and prompt != "go on"
                else "said"
            )

    @on(event, gate=True)
    async def judge(event, data):
        return HookResult(
            action="ask_user" if asks else "deny", reason="no", approval_prompt="May it?"
        )

    plan = {"session": {"orchestrator": Loop(), "context": "context-simple"}, "hooks": [judge]}
    async with AmplifierSession(plan) as session:
        with pytest.raises(ExecutionDenied, match="Operation denied: ") as caught:
            await session.execute("go")
        assert caught.value.event == event
        assert (last_turn_of(session).stop_reason, session.status.status) == ("denied", "failed")
        assert (
            await session.execute("go on") == "said"
        )  # what a loop has gone on without was not its end


async def test_foreign_loop_is_reported_by_its_events():
    class Loop:
        async def execute(self, prompt, hooks, context):
            await hooks.emit(
                "tool:pre", {"tool_name": "x", "tool_call_id": "1", "tool_input": {"a": 1}}
            )
            await hooks.emit(
                "tool:post", {"tool_name": "x", "tool_call_id": "1", "result": "plain"}
            )
            await hooks.emit(
                "provider:response",
                {"provider": "p", "response": "odd", "usage": {"input_tokens": 3}},
            )
            await hooks.emit("tool:pre", {})
            return "said"

    plan = {"session": {"orchestrator": Loop(), "context": "context-simple"}}
    async with AmplifierSession(plan) as session:
        await session.execute("go")
        turn = last_turn_of(session)
    assert (turn.text, turn.usage.input_tokens, turn.provider, turn.model) == ("said", 3, "p", None)
    assert [(use.tool, use.output, use.success) for use in turn.tool_calls] == [
        ("x", "plain", True),
        ("", None, False),
    ]
    assert [message["role"] for message in turn.messages] == ["user", "tool", "assistant"]


async def test_messages_need_open_session():
    session = AmplifierSession(plan_of(MockProvider([])))
    with pytest.raises(SessionStateError, match="is new; read its messages while it is open"):
        await session.messages()


async def test_report_keeps_no_session_alive():
    async with AmplifierSession(plan_of(MockProvider([LLMError("no")]))) as session:
        with pytest.raises(LLMError):
            await session.execute("go")
        turn = last_turn_of(session)
    seen = weakref.ref(session)
    del session
    gc.collect()
    assert seen() is None
    assert turn.error == "LLMError: no"
