"""What every engine promises, in one process: turns, conversations, questions, stops, events, errors."""

from __future__ import annotations

import anyio
import pytest

from amplifier.durable import (
    QuestionClosedError,
    TurnConflictError,
    TurnFailedError,
    TurnHeldError,
    TurnStoppedError,
    UnknownTurnError,
)
from amplifier.durable._turn_record import TurnRecord
from amplifier.errors import PlanError, SessionBusyError
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    asking,
    effect_agent,
    hand_over,
    hanging,
    tool,
    until,
    working,
)
from tests.modules.durable_agent import transcript_problems

pytestmark = pytest.mark.parametrize("kind", ENGINES)


async def test_conversation_continues_with_next_turn(engine):
    seen = []
    provider = answering("Hello Anna.", "Your name is Anna.")

    def make_session(session_id):
        session = agent(provider)(session_id)
        session.coordinator.hooks.register(
            "provider:request", lambda event, data: seen.append(data["messages"])
        )
        return session

    async with working(engine, make_session):
        first = await engine.start("anna-1", "I am Anna")
        assert await engine.result(first) == "Hello Anna."
        second = await engine.start("anna-1", "who am I?")
        assert await engine.result(second) == "Your name is Anna."
        assert [m["content"] for m in seen[-1]] == ["I am Anna", "Hello Anna.", "who am I?"]
        assert len(await engine.messages("anna-1")) == 4
        assert (await engine.status(second)).state == "completed"
        assert await engine.messages("bert-1") == []


async def test_tool_results_belong_to_their_calls(engine, tmp_path):
    async with working(engine, effect_agent(tmp_path)):
        turns = [await engine.start(f"s{number}", "go") for number in range(3)]
        for turn in turns:
            assert await engine.result(turn) == "All done."
        messages = await engine.messages("s0")
    assert transcript_problems(messages, is_whole=True) == []
    assert sum(message["role"] == "tool" for message in messages) == 16


async def test_same_turn_starts_once(engine):
    assert await engine.start("s", "go", turn_id="order-17") == "order-17"
    assert await engine.start("s", "go", turn_id="order-17") == "order-17"
    with pytest.raises(TurnConflictError, match="order-17"):
        await engine.start("s", "stop", turn_id="order-17")
    async with working(engine, agent(answering("Done."))):
        assert await engine.result("order-17") == "Done."


async def test_second_open_turn_is_refused(engine):
    first = await engine.start("s", "go")
    with pytest.raises(SessionBusyError, match=first):
        await engine.start("s", "go on")


async def test_wrong_input_is_refused(engine):
    with pytest.raises(PlanError, match="session"):
        await engine.start("../etc", "go")
    with pytest.raises(TypeError, match="prompt must be a str"):
        await engine.start("s", 7)
    for call in (engine.status, engine.result, engine.stop, engine.resume):
        with pytest.raises(UnknownTurnError, match="no turn 'nothing'"):
            await call("nothing")
    with pytest.raises(UnknownTurnError):
        await anext(aiter(engine.watch("nothing")))
    with pytest.raises(ValueError, match="at least 1"):
        await engine.work(agent(answering("x")), concurrency=0)


async def test_impossible_session_fails_turn_only(engine):
    def make_session(session_id):
        if session_id == "bad":
            raise LookupError("no such customer")
        return agent(answering("Fine."))(session_id)

    async with working(engine, make_session):
        bad, good = await engine.start("bad", "go"), await engine.start("good", "go")
        with pytest.raises(TurnFailedError, match="no such customer"):
            await engine.result(bad)
        assert await engine.result(good) == "Fine."


async def test_context_with_own_messages_is_refused(engine, tmp_path):
    where = {"module": "context-persistent", "config": {"path": str(tmp_path / "own")}}
    section = {"orchestrator": "loop-basic", "context": where}
    async with working(engine, agent(answering("a", "b"), session=section)):
        assert await engine.result(await engine.start("s", "go")) == "a"
        with pytest.raises(TurnFailedError, match="begins empty"):
            await engine.result(await engine.start("s", "go on"))


async def wait_for_question(engine, turn):
    return (await until(engine, turn, lambda status: status.questions)).questions[0]


@pytest.mark.parametrize(("option", "expected"), [("Allow", "paid"), ("Deny", "denied")])
async def test_question_waits_for_answer(engine, option, expected):
    pay = tool("pay", lambda given: "paid")
    make_session = agent(answering([("pay", {})], "Done."), pay, hooks=asking())
    async with working(engine, make_session):
        turn = await engine.start("s", "pay")
        question = await wait_for_question(engine, turn)
        assert (question.prompt, question.options, question.tool_name) == (
            "May I pay?",
            ("Allow", "Deny"),
            "pay",
        )
        with pytest.raises(QuestionClosedError, match="does not offer 'Perhaps'"):
            await engine.approve(turn, question.question_id, "Perhaps")
        with pytest.raises(QuestionClosedError, match="open questions"):
            await engine.approve(turn, "another", option)
        await engine.approve(turn, question.question_id, option)
        assert await engine.result(turn) == "Done."
        assert expected in (await engine.messages("s"))[2]["content"]
        with pytest.raises(QuestionClosedError, match="completed"):
            await engine.approve(turn, question.question_id, option)


async def test_question_is_answered_without_worker(engine):
    """The next worker continues the turn."""
    paid = []
    models = []

    def make_session(session_id):
        models.append(session_id)

        def pay_once(given):
            paid.append(1)
            return "paid"

        pay = tool("pay", pay_once, repeatable=False)
        return agent(
            answering([("pay", {})], "Done.") if len(models) == 1 else answering("Done."),
            pay,
            hooks=asking(),
        )(session_id)

    turn = await engine.start("s", "pay")
    async with working(engine, make_session):
        question = await wait_for_question(engine, turn)
    assert (await engine.status(turn)).questions == (question,)
    await engine.approve(turn, question.question_id, "Allow")
    async with working(engine, make_session):
        assert await engine.result(turn) == "Done."
    assert (len(paid), len(models)) == (1, 2)


async def test_turn_is_stopped(engine):
    make_session = agent(answering([("hang", {})], "unreached"), hanging()[0])
    async with working(engine, make_session):
        turn = await engine.start("s", "go")
        await wait_until_recorded(engine, turn, "tool:pre")
        await engine.stop(turn, reason="enough")
        with pytest.raises(TurnStoppedError):
            await engine.result(turn)
        await engine.stop(turn)  # nothing happens any more
        messages = await engine.messages("s")
        assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
        assert (
            transcript_problems(
                [{**m, "content": "interrupted"} if m["role"] == "tool" else m for m in messages],
                is_whole=True,
            )
            == []
        )


async def test_graceful_stop_lets_tool_finish(engine):
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(given):
        begun.set()
        await go_on.wait()
        return "finished"

    make_session = agent(answering([("slow", {})], "unreached"), tool("slow", slow))
    async with working(engine, make_session):
        turn = await engine.start("s", "go")
        await begun.wait()
        await engine.stop(turn, graceful=True)
        async for event in engine.watch(turn):
            if event.name == "cancel:requested":
                go_on.set()
        assert (await engine.status(turn)).state == "stopped"
        assert (await engine.messages("s"))[2]["content"] == "finished"


async def test_unstarted_turn_is_stopped_at_once(engine):
    turn = await engine.start("s", "go")
    await engine.stop(turn)
    with pytest.raises(TurnStoppedError):
        await engine.result(turn)
    async with working(engine, agent(answering("Hello."))):
        assert await engine.result(await engine.start("s", "hi")) == "Hello."
    assert [m["content"] for m in await engine.messages("s")] == ["hi", "Hello."]


async def test_stopped_handed_over_turn_keeps_work(engine):
    hang, begun = hanging()
    first = agent(
        answering([("look", {})], [("hang", {})]), tool("look", lambda given: "two shelves"), hang
    )
    turn = await engine.start("s", "go")
    async with working(engine, first):
        await begun.wait()
    await engine.stop(turn)
    async with working(engine, first):
        with anyio.fail_after(60), pytest.raises(TurnStoppedError):
            await engine.result(turn)
    contents = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert contents[0] == "two shelves"
    assert len(contents) == 2


async def test_watchers_resume_events_behind_position(engine):
    secret = "sk-" + "a1B2" * 12
    look = tool("look", lambda given: {"api_key": secret, "shelves": 2})
    async with working(engine, agent(answering([("look", {})], "Two."), look)):
        turn = await engine.start("s", "go")
        events = [event async for event in engine.watch(turn)]
        names = [event.name for event in events]
        assert names[0] == "session:start"
        assert [name for name in names if name.startswith("tool:")] == ["tool:pre", "tool:post"]
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert {event.attempt for event in events} == {1}
        assert secret not in repr(events)
        again = [event async for event in engine.watch(turn, after=events[2].position)]
        assert again == events[3:]


async def test_leaving_worker_hands_turn_over(engine):
    """Nothing known is repeated."""
    hang, begun = hanging(repeatable=True)
    calls = []

    def look(given):
        calls.append("look")
        return "two shelves"

    def model(*answers):
        def asked(answer):
            def respond(request):
                calls.append("model")
                return answer

            return respond

        return answering(*map(asked, answers))

    turn = await engine.start("s", "go")
    first = agent(model([("look", {}), ("hang", {})]), tool("look", look), hang)
    async with working(engine, first):
        await begun.wait()
        await wait_until_recorded(engine, turn, "tool:post")
    second = agent(
        model("Two."), tool("look", look), tool("hang", lambda given: "again", repeatable=True)
    )
    async with working(engine, second):
        assert await engine.result(turn) == "Two."
    results = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert results == ["two shelves", "again"]
    assert calls == ["model", "look", "model"]
    assert {event.attempt async for event in engine.watch(turn)} >= {1}


async def wait_until_recorded(engine, turn, name):
    async for event in engine.watch(turn):
        if event.name == name:
            return


async def test_call_with_possible_effect_is_not_repeated(engine):
    turn = await engine.start("s", "go")
    pay = await hand_over(engine, "pay", repeatable=False)
    async with working(engine, agent(answering("I do not know."), pay)):
        assert await engine.result(turn) == "I do not know."
    result = (await engine.messages("s"))[2]["content"]
    assert "interrupted" in result
    assert "not repeatable" in result
    assert len(pay.calls) == 1


async def test_turn_with_changed_plan_is_held(engine):
    turn = await engine.start("s", "go")
    await hand_over(engine, "old", repeatable=True)
    async with working(engine, agent(answering("New."), tool("new", lambda given: 1))):
        with pytest.raises(
            TurnHeldError, match="tool-old is not in the plan any more; tool-new is new"
        ):
            await engine.result(turn)
        with pytest.raises(SessionBusyError, match="held"):
            await engine.start("s", "another")
        await engine.resume(turn)
        assert await engine.result(turn) == "New."
    assert "no tool named 'old' any more" in (await engine.messages("s"))[2]["content"]


async def test_held_turn_can_be_stopped(engine):
    turn = await engine.start("s", "go")
    await hand_over(engine, "old")
    async with working(engine, agent(answering("New."))):
        with pytest.raises(TurnHeldError):
            await engine.result(turn)
        await engine.stop(turn)
        assert (await until(engine, turn, lambda status: status.is_final)).state == "stopped"


async def test_effects_match_results_over_many_hand_overs(engine, tmp_path):
    turn = await engine.start("s", "go")
    for seconds in (0.05, 0.1, 0.15, 0.2):
        async with working(engine, effect_agent(tmp_path)):
            await anyio.sleep(seconds)  # moments of no importance; nothing waits for them
    async with working(engine, effect_agent(tmp_path)):
        assert await engine.result(turn) == "All done."
    messages = await engine.messages("s")
    assert transcript_problems(messages, is_whole=True) == []


async def test_no_event_is_lost_at_turn_end(engine, monkeypatch):
    storing, ended = anyio.Event(), anyio.Event()
    add_events = TurnRecord.add_events

    async def add_late(store, *args):
        storing.set()
        await ended.wait()
        await anyio.sleep(
            0.2
        )  # the end of the turn must wait for this, and would have been stored by now if it did not
        await add_events(store, *args)

    async def look(given):
        await storing.wait()
        return "two shelves"

    def make_session(session_id):
        session = agent(answering([("look", {})], "Two."), tool("look", look))(session_id)
        session.coordinator.hooks.register("session:end", lambda event, data: ended.set())
        return session

    monkeypatch.setattr(TurnRecord, "add_events", add_late)
    async with working(engine, make_session):
        events = [event async for event in engine.watch(await engine.start("s", "go"))]
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    assert events[-1].name == "session:end"
