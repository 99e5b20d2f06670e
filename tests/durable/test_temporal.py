"""What only the engine on Temporal can get wrong: news is delivered to a worker once, and the SDK has a thread and tasks of its own."""

from __future__ import annotations

import anyio
import pytest

from amplifier.durable import TurnStoppedError
from amplifier.durable._temporal._hosting import Host
from amplifier.durable._temporal._record import TurnRecord
from tests.durable.agents import MAY_LEAVE, agent, answering, asking_agent, open_engine, tool, until, working

pytestmark = [pytest.mark.slow, MAY_LEAVE, pytest.mark.parametrize("kind", ["temporal"])]


def hold_until_news(monkeypatch, method):
    """Let the reply of the server to a method of the record arrive, but its task not go on until the worker has heard news.

    Returns:
        An event that is set when the reply has arrived.
    """
    replied, heard = anyio.Event(), anyio.Event()
    original, hear_news = getattr(TurnRecord, method), Host._hear_news

    async def held(record, *args):
        reply = await original(record, *args)
        replied.set()
        await heard.wait()
        return reply

    def hear(host, *args):
        hear_news(host, *args)
        heard.set()

    monkeypatch.setattr(TurnRecord, method, held)
    monkeypatch.setattr(Host, "_hear_news", hear)
    return replied


async def test_an_answer_that_arrives_before_its_question_waits_is_kept(kind, place, tmp_path, monkeypatch):
    replied = hold_until_news(monkeypatch, "ask")
    async with open_engine(kind, place) as engine, working(engine, asking_agent(tmp_path)):
        turn = await engine.start("s", "pay")
        with anyio.fail_after(60):
            await replied.wait()
            [question] = (await until(engine, turn, lambda status: status.questions)).questions
            await engine.approve(turn, question.question_id, "Allow")
            assert await engine.result(turn) == "Paid."


@pytest.mark.parametrize("graceful", [False, True])
async def test_nothing_begins_after_a_stop_that_arrives_while_a_worker_claims_the_turn(
    kind, place, monkeypatch, graceful
):
    calls = []

    def model(request):
        calls.append("model")
        return [("look", {})]

    replied = hold_until_news(monkeypatch, "claim")
    make_session = agent(answering(model), tool("look", lambda given: calls.append("look")))
    async with open_engine(kind, place) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        with anyio.fail_after(60):
            await replied.wait()
            await engine.stop(turn, graceful=graceful)
            with pytest.raises(TurnStoppedError):
                await engine.result(turn)
    assert calls == []
