"""News that reaches a turn before it is ready for them: an answer before its question waits, a stop before the session exists."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import cancel_shielded_checkpoint

from amplifier.durable import TurnStoppedError
from amplifier.durable._running_turn import RunningTurn
from amplifier.durable._values import StopRequest
from amplifier.testing import MockProvider
from tests.durable.agents import agent, answering, asking_agent, die_with, open_engine, store_of, tool


async def claimed_turn(engine, turn_id):
    turn = await store_of(engine).claim(turn_id, "worker")
    assert turn is not None
    return RunningTurn(store_of(engine), turn)


async def test_an_answer_that_arrives_before_its_question_waits_is_kept(tmp_path, monkeypatch):
    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "pay")
        running = await claimed_turn(engine, turn)
        ask = store_of(engine).ask

        async def answer_before_return(claimed, question):
            assert await ask(claimed, question) is None
            await engine.approve(turn, question.question_id, "Allow")
            running.answer(question.question_id, "Allow")

        monkeypatch.setattr(store_of(engine), "ask", answer_before_return)
        with anyio.fail_after(30):
            assert await running.run(asking_agent(tmp_path))
        assert await engine.result(turn) == "Paid."


@pytest.mark.parametrize("graceful", [False, True])
async def test_nothing_begins_after_a_stop_that_arrives_before_the_session_exists(tmp_path, graceful):
    calls = []

    def model(request):
        calls.append("model")
        return [("look", {})]

    make_session = agent(answering(model), tool("look", lambda given: calls.append("look")))
    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "go")
        running = await claimed_turn(engine, turn)
        running.stop(StopRequest(graceful=graceful, reason="enough"))
        with anyio.fail_after(30):
            assert await running.run(make_session)
            with pytest.raises(TurnStoppedError):
                await engine.result(turn)
    assert calls == []


async def test_a_call_does_not_begin_after_a_stop_that_arrives_while_its_beginning_is_recorded(tmp_path, monkeypatch):
    calls = []
    make_session = agent(answering([("look", {})]), tool("look", lambda given: calls.append("look")))
    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "go")
        running = await claimed_turn(engine, turn)
        begin_step = store_of(engine).begin_step

        async def begin_and_stop(claimed, step, plan):
            await begin_step(claimed, step, plan)
            if step.kind == "tool":
                running.stop(StopRequest(graceful=False, reason=None))
                for _ in range(3):  # the stop reaches the turn, but not the transaction
                    await cancel_shielded_checkpoint()

        monkeypatch.setattr(store_of(engine), "begin_step", begin_and_stop)
        with anyio.fail_after(30):
            assert await running.run(make_session)
        assert (await engine.status(turn)).state == "stopped"
    assert calls == []


@pytest.mark.parametrize("deaths", [1, 5, 6])
async def test_a_turn_whose_workers_always_die_can_be_stopped(tmp_path, deaths):
    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "go")
        await die_with(engine, turn, deaths)
        await engine.stop(turn)
        running = await claimed_turn(engine, turn)
        with anyio.fail_after(30):
            assert await running.run(agent(answering("unreached")))
        assert (await engine.status(turn)).state == "stopped"


async def test_compactions_are_decided_once_whoever_runs_the_turn_and_the_next_one_knows_them(tmp_path):
    """The second attempt of the first turn, and then the second turn, show the model what the first attempt has shown it."""
    shown: list[list[str]] = []
    known: list[int] = []
    summaries = 0
    scope = anyio.CancelScope()

    def model(request):
        nonlocal summaries
        if str(request.messages[0].content).startswith("You keep the memory"):
            summaries += 1
            return f"Summary {summaries}."
        shown.append([str(message.content) for message in request.messages])
        known.append(summaries)
        if len(shown) == 11:
            scope.cancel()  # the worker leaves with a compaction in force
        return [("look", {"at": "y" * 3500})] if len(shown) < 14 else "Done."

    window = {"context_window": 9000, "max_output_tokens": 0}

    def make_session(session_id):
        provider = MockProvider(model, defaults=window)
        return agent(provider, tool("look", lambda given: "seen"))(session_id)

    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "go")
        with scope:
            await (await claimed_turn(engine, turn)).run(make_session)
        asked = summaries
        assert asked > 0
        await store_of(engine).release(turn)
        with anyio.fail_after(60):
            assert await (await claimed_turn(engine, turn)).run(make_session)
        assert await engine.result(turn) == "Done."
        assert shown[11] == shown[10], "the request that was cut off, once more"
        assert known[11] == asked, "and nobody was asked for a summary again"
        before = summaries
        second = await engine.start("s", "and now?")
        assert await (await claimed_turn(engine, second)).run(make_session)
        assert shown[-1][: len(shown[-2])] == shown[-2]
        assert summaries == before
        stored = await engine.messages("s")
        assert "metadata" not in stored[-1]
        assert [message["role"] for message in stored][-3:] == ["assistant", "user", "assistant"]
