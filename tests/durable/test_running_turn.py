"""News that reaches a turn before it is ready for them: an answer before its question waits, a stop before the session exists."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import cancel_shielded_checkpoint

from amplifier.durable import TurnStoppedError, _worker
from amplifier.durable._turn_record import TurnRecord
from amplifier.durable._values import StopRequest
from amplifier.testing import MockProvider
from tests.durable.agents import (
    agent,
    answering,
    asking_agent,
    die_with,
    open_engine,
    tool,
    until,
    working,
)


def running_turn(turn_id):
    """The turn in the worker of this process."""
    assert _worker._worker is not None
    return _worker._worker._running[turn_id][0]


async def test_answer_before_waiting_question_is_kept(tmp_path, monkeypatch):
    ask = TurnRecord.ask

    async def answer_before_return(record, turn, question):
        assert await ask(record, turn, question) is None
        await engine.approve(turn.turn_id, question.question_id, "Allow")
        running_turn(turn.turn_id).answer(question.question_id, "Allow")

    monkeypatch.setattr(TurnRecord, "ask", answer_before_return)
    async with open_engine("sqlite", tmp_path) as engine, working(engine, asking_agent(tmp_path)):
        assert await engine.result(await engine.start("s", "pay")) == "Paid."


@pytest.mark.parametrize("graceful", [False, True])
async def test_stop_before_session_starts_nothing(tmp_path, graceful):
    calls = []

    def model(request):
        calls.append("model")
        return [("look", {})]

    make = agent(answering(model), tool("look", lambda given: calls.append("look")))

    def make_session(session_id):
        running_turn("turn").stop(StopRequest(graceful=graceful, reason="enough"))
        return make(session_id)

    async with open_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        with pytest.raises(TurnStoppedError):
            await engine.result(await engine.start("s", "go", turn_id="turn"))
    assert calls == []


async def test_stop_during_call_record_prevents_call(tmp_path, monkeypatch):
    calls = []
    make_session = agent(
        answering([("look", {})]), tool("look", lambda given: calls.append("look"))
    )
    begin_step = TurnRecord.begin_step

    async def begin_and_stop(record, step, *args):
        await begin_step(record, step, *args)
        running_turn("turn").stop(StopRequest(graceful=False, reason=None))
        for _ in range(3):
            # The stop reaches the turn, but not the database.
            await cancel_shielded_checkpoint()

    monkeypatch.setattr(TurnRecord, "begin_step", begin_and_stop)
    async with open_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        turn = await engine.start("s", "go", turn_id="turn")
        await until(engine, turn, lambda status: status.state == "stopped")
    assert calls == []


async def test_stop_stored_before_call_prevents_call(tmp_path, monkeypatch):
    """The worker looks for news so rarely that it finds the stop with the beginning of the call."""
    calls = []
    make_session = agent(
        answering([("look", {})]), tool("look", lambda given: calls.append("look"))
    )
    begin_step = TurnRecord.begin_step

    async def stop_and_begin(record, step, *args):
        await engine.stop(record.turn_id, reason="enough")
        return await begin_step(record, step, *args)

    monkeypatch.setattr(TurnRecord, "begin_step", stop_and_begin)
    async with open_engine("sqlite", tmp_path, poll=600.0) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        await until(engine, turn, lambda status: status.state == "stopped")
    assert calls == []


@pytest.mark.parametrize("deaths", [1, 3, 4])
async def test_turn_with_dying_workers_can_be_stopped(tmp_path, deaths):
    async with open_engine("sqlite", tmp_path) as engine:
        turn = await engine.start("s", "go")
        await die_with(engine, turn, deaths)
        await engine.stop(turn)
        async with working(engine, agent(answering("unreached"))):
            await until(engine, turn, lambda status: status.state == "stopped")


async def test_compactions_are_decided_once(
    tmp_path,
):
    """The second attempt of the first turn, and then the second turn, show the model what the first attempt has shown it."""
    shown: list[list[str]] = []
    known: list[int] = []
    summaries = 0
    leave = anyio.Event()

    async def model(request):
        nonlocal summaries
        if str(request.messages[0].content).startswith("You keep the memory"):
            summaries += 1
            return f"Summary {summaries}."
        shown.append([str(message.content) for message in request.messages])
        known.append(summaries)
        if len(shown) == 11:
            # The worker leaves with a compaction in force.
            leave.set()
            await anyio.sleep_forever()
        return [("look", {"at": "y" * 3500})] if len(shown) < 14 else "Done."

    window = {"context_window": 9000, "max_output_tokens": 0}

    def make_session(session_id):
        provider = MockProvider(model, defaults=window)
        return agent(provider, tool("look", lambda given: "seen"))(session_id)

    async with open_engine("sqlite", tmp_path) as engine:
        turn = await engine.start("s", "go")
        async with working(engine, make_session):
            await leave.wait()
        asked = summaries
        assert asked > 0
        async with working(engine, make_session):
            assert await engine.result(turn) == "Done."
            assert shown[11] == shown[10], "the request that was cut off, once more"
            assert known[11] == asked, "and nobody was asked for a summary again"
            before = summaries
            await engine.result(await engine.start("s", "and now?"))
        assert shown[-1][: len(shown[-2])] == shown[-2]
        assert summaries == before
        stored = await engine.messages("s")
        assert "metadata" not in stored[-1]
        assert [message["role"] for message in stored][-3:] == ["assistant", "user", "assistant"]
