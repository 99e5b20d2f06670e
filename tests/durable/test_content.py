"""What turns contain: text that databases do not hold, and values that cannot be stored, end neither workers nor other turns."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from amplifier.durable import TurnConflictError, TurnFailedError
from amplifier.durable._values import BLOCKS
from amplifier.models import ChatResponse, HookResult, ToolCall, ToolResult, file, to_dict
from tests.durable.agents import ENGINES, agent, answering, hanging, tool, until, working

pytestmark = pytest.mark.parametrize("kind", ENGINES)


def failing(message):
    def fail(request):
        raise RuntimeError(message)

    return fail


@asynccontextmanager
async def serving(engine, *answers, tools=(), **options):
    """A worker whose session ``s`` has these answers; all other sessions say hello. At the end it still works."""

    def make_session(session_id):
        model = answering(*answers) if session_id == "s" else answering("Hello.")
        return agent(model, *tools, **options)(session_id)

    async with working(engine, make_session):
        yield
        assert await engine.result(await engine.start("other", "hi")) == "Hello."


@pytest.mark.parametrize(
    ("message", "shown"),
    [("no model today", "no model today"), ("caf\udce9", "caf"), ("nul \0", "nul")],
    ids=["an ordinary text", "a lone surrogate", "NUL"],
)
async def test_error_with_odd_text_fails_turn_only(engine, message, shown):
    """The worker continues."""
    async with serving(engine, failing(message)):
        turn = await engine.start("s", "go")
        with (
            anyio.fail_after(60),
            pytest.raises(TurnFailedError, match=f"RuntimeError: {shown}") as caught,
        ):
            await engine.result(turn)
        assert caught.value.error_type == "RuntimeError"
        str(caught.value).encode()  # it can be printed
        assert [(m["role"], m["content"]) for m in await engine.messages("s")] == [("user", "go")]


async def test_answer_with_nul_is_stored(engine):
    async with serving(engine, "a\0b"):
        assert await engine.result(await engine.start("s", "go")) == "a\0b"
        assert (await engine.messages("s"))[1]["content"] == "a\0b"


async def test_prompt_blocks_survive_process_boundary(engine):
    image = to_dict(file(b"\x89PNG\r\n\x1a\n", name="chart.png"))
    async with serving(engine, "One."):
        assert (
            await engine.result(await engine.start("s", ["nul \0", image], turn_id="t")) == "One."
        )
        assert await engine.start("s", ["nul \0", image], turn_id="t") == "t"
        with pytest.raises(TurnConflictError):
            await engine.start("s", "nul", turn_id="t")
        assert await engine.result(await engine.start("s", f"{BLOCKS}[]")) == "One."
        prompts = [
            message["content"]
            for message in await engine.messages("s")
            if message["role"] == "user"
        ]
    assert prompts == [[{"type": "text", "text": "nul \0"}, image], f"{BLOCKS}[]"]


@pytest.mark.parametrize("call_id", ["call\0one", "long" * 1000])
async def test_call_id_may_be_any_text(engine, call_id):
    """It is part of the step's key, and the result belongs to that key when the turn is run again."""
    begun = anyio.Event()
    looked: list[object] = []

    async def hang(given):
        begun.set()
        await anyio.sleep_forever()

    def look(given):
        looked.append(given)
        return "two shelves"

    calls = [
        ToolCall(id=call_id, name="look", arguments={}),
        ToolCall(id=f"{call_id}2", name="hang", arguments={}),
    ]
    one_after_the_other = {
        "orchestrator": {"module": "loop-basic", "config": {"max_parallel_tools": 1}},
        "context": "context-simple",
    }

    def make_session(*answers, then):
        tools = (tool("look", look), tool("hang", then, repeatable=True))
        return agent(answering(*answers), *tools, session=one_after_the_other)

    turn = await engine.start("s", "go")
    async with working(engine, make_session(ChatResponse(content=[], tool_calls=calls), then=hang)):
        await begun.wait()
    async with working(engine, make_session("Two.", then=lambda given: "again")):
        assert await engine.result(turn) == "Two."
    assert [m["content"] for m in await engine.messages("s") if m["role"] == "tool"] == [
        "two shelves",
        "again",
    ]
    assert looked == [{}]


async def test_question_and_options_may_be_any_text(engine):
    chosen: list[str] = []

    async def ask(event, data):
        options = ["Allow caf\udce9", "Deny\0"]
        answer = await sessions[-1].coordinator.approval_system.request_approval(
            "caf\udce9?\0", options, 60.0, "deny"
        )
        chosen.append(answer)
        return HookResult(action="continue")

    async def mount(coordinator, config):
        coordinator.hooks.register("tool:pre", ask, name="ask", timeout=None)

    sessions = []
    made = agent(
        answering([("pay", {})], "Done."),
        tool("pay", lambda given: "paid"),
        hooks={"hooks-ask": mount},
    )

    def make_session(session_id):
        sessions.append(made(session_id))
        return sessions[-1]

    async with working(engine, make_session):
        turn = await engine.start("s", "pay")
        [question] = (await until(engine, turn, lambda status: status.questions)).questions
        assert (question.prompt, question.options) == (
            "caf\ufffd?\0",
            ("Allow caf\ufffd", "Deny\ufffd"),
        )
        await engine.approve(turn, question.question_id, question.options[1])
        assert await engine.result(turn) == "Done."
    assert chosen == ["Deny\0"]


async def test_odd_values_in_events_are_stored(engine):
    async def odd(given):
        return ToolResult(output={"text": "caf\udce9", "number": 2**70})

    def make_session(session_id):
        session = agent(answering([("odd", {})], "Done."), tool("odd", odd))(session_id)

        async def add(event, data):
            await session.coordinator.hooks.emit(
                "shop:seen", {"caf\udce9": 2**70, "thing": "\ud800"}
            )
            message = {"role": "system", "content": "caf\udce9", "extra": {"number": 2**70}}
            await session.coordinator.get("context").add_message(message)

        session.coordinator.hooks.register("tool:post", add)
        return session

    async with working(engine, make_session):
        turn = await engine.start("s", "go")
        assert await engine.result(turn) == "Done."
        events = [event async for event in engine.watch(turn)]
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert [event.data["thing"] for event in events if event.name == "shop:seen"] == ["\ufffd"]
        assert {
            "role": "system",
            "content": "caf\ufffd",
            "extra": {"number": str(2**70)},
        } in await engine.messages("s")


async def test_stop_reason_may_be_any_text(engine):
    hang, begun = hanging()
    async with serving(engine, [("hang", {})], tools=[hang]):
        turn = await engine.start("s", "go")
        await begun.wait()
        await engine.stop(turn, reason="caf\udce9\0")
        assert (await until(engine, turn, lambda status: status.is_final)).state == "stopped"
