"""Stops and errors at awkward moments: what a turn has done before stays in the conversation, and results state what is known."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from amplifier.durable import TurnFailedError, TurnStoppedError
from amplifier.durable._turn_record import TurnRecord
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    asking,
    hanging,
    open_engine,
    tool,
    until,
    working,
)

pytestmark = pytest.mark.parametrize("kind", ENGINES)


class Shop:
    """An agent that looks around and then hangs; later attempts open slowly, fail, or hang in the same way."""

    def __init__(self, *answers):
        self.begun = anyio.Event()
        self.is_opening = anyio.Event()
        self.go_on = anyio.Event()
        self.answers = answers or ([("look", {})], [("hang", {})])
        self.may_open_quickly = True
        self.problem = None
        self.mount_problem = None
        self.system_prompt = None
        self.session = None

    async def _hang(self, given):
        self.begun.set()
        await anyio.sleep_forever()

    async def _mount_gate(self, coordinator, config):
        if self.mount_problem is not None:
            raise self.mount_problem
        if not self.may_open_quickly:
            self.is_opening.set()
            await self.go_on.wait()

    def make_session(self, session_id):
        if session_id != "s":
            return agent(answering("Hello."))(session_id)
        if self.problem is not None:
            raise self.problem
        tools = (tool("look", lambda given: "two shelves"), tool("hang", self._hang))
        loop = {"module": "loop-basic", "config": {"system_prompt": self.system_prompt}}
        section = {"orchestrator": loop, "context": "context-simple"}
        hooks = {"hooks-gate": self._mount_gate}
        make = agent(
            answering(*self.answers), *tools, hooks=hooks, session={**section, "strict": True}
        )
        self.session = make(session_id)
        return self.session

    @asynccontextmanager
    async def cut_off(self, kind, place):
        """An engine and a turn whose first worker left in the middle."""
        async with open_engine(kind, place) as engine:
            turn = await engine.start("s", "go")
            async with working(engine, self.make_session):
                await self.begun.wait()
            yield engine, turn


def results(messages):
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("when", ["while a later attempt opens", "before a later attempt"])
async def test_stop_without_reopening_keeps_work(kind, place, when):
    shop = Shop()
    async with shop.cut_off(kind, place) as (engine, turn):
        shop.may_open_quickly = False
        if when == "before a later attempt":
            await engine.stop(turn)
        async with working(engine, shop.make_session):
            if when == "while a later attempt opens":
                await shop.is_opening.wait()
                await engine.stop(turn)
            with anyio.fail_after(60), pytest.raises(TurnStoppedError):
                await engine.result(turn)
        messages = await engine.messages("s")
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert results(messages)[0] == "two shelves"
    assert "whether it had an effect is not known" in results(messages)[1]


@pytest.mark.parametrize("how", ["problem", "mount_problem"])
async def test_unopenable_session_fails_turn_keeping_work(kind, place, how):
    shop = Shop()
    shop.system_prompt = "Be short." if how == "mount_problem" else None
    async with shop.cut_off(kind, place) as (engine, turn):
        setattr(shop, how, ConnectionError("no such customer"))
        async with working(engine, shop.make_session):
            with pytest.raises(TurnFailedError, match=r"no such customer|hooks-gate"):
                await engine.result(turn)
            setattr(shop, how, None)
            messages = await engine.messages("s")
            shop.answers = ("I am back.",)
            assert await engine.result(await engine.start("s", "and now?")) == "I am back."
        assert (await engine.messages("s"))[: len(messages)] == messages
    roles = [m["role"] for m in messages]
    assert roles == ["system"] * (how == "mount_problem") + [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert results(messages)[0] == "two shelves"


async def test_stop_during_first_opening(engine):
    shop = Shop()
    shop.may_open_quickly = False
    async with working(engine, shop.make_session):
        turn = await engine.start("s", "go")
        await shop.is_opening.wait()
        await engine.stop(turn, reason="enough")
        with pytest.raises(TurnStoppedError):
            await engine.result(turn)
        status = await engine.status(turn)
        assert (status.state, status.error) == ("stopped", None)
        assert await engine.messages("s") == []
        assert await engine.result(await engine.start("other", "hi")) == "Hello."


async def test_graceful_stop_during_opening(engine):
    shop = Shop("unreached")
    shop.may_open_quickly = False
    async with working(engine, shop.make_session):
        turn = await engine.start("s", "go")
        await shop.is_opening.wait()
        await engine.stop(turn, graceful=True)
        await until(engine, turn, lambda status: shop.session.coordinator.cancellation.is_cancelled)
        shop.go_on.set()
        with pytest.raises(TurnStoppedError):
            await engine.result(turn)


async def test_begun_call_of_dead_worker_is_interrupted(kind, place):
    shop = Shop([("hang", {})])
    async with shop.cut_off(kind, place) as (engine, turn):
        await engine.stop(turn)
        async with working(engine, shop.make_session):
            with anyio.fail_after(60), pytest.raises(TurnStoppedError):
                await engine.result(turn)
        [hung] = results(await engine.messages("s"))
    assert "the turn is being stopped; whether it had an effect is not known" in hung


async def test_recorded_results_survive_stop(engine, monkeypatch):
    hang, begun = hanging()
    recorded = anyio.Event()
    finish_step = TurnRecord.finish_step

    async def finish_and_note(record, step, *args):
        await finish_step(record, step, *args)
        if step.kind == "tool":
            recorded.set()

    look = tool("look", lambda given: "two shelves")
    make_session = agent(answering([("hang", {}), ("look", {})]), hang, look)
    monkeypatch.setattr(TurnRecord, "finish_step", finish_and_note)
    turn = await engine.start("s", "go")
    async with working(engine, make_session):
        await begun.wait()
        await recorded.wait()
    await engine.stop(turn)
    async with working(engine, make_session):
        with anyio.fail_after(60), pytest.raises(TurnStoppedError):
            await engine.result(turn)
    hung, looked = results(await engine.messages("s"))
    assert "whether it had an effect is not known" in hung
    assert looked == "two shelves"


async def test_call_stopped_during_approval_is_not_started(engine):
    make_session = agent(
        answering([("pay", {})]), tool("pay", lambda given: "paid"), hooks=asking()
    )
    async with working(engine, make_session):
        turn = await engine.start("s", "pay")
        await until(engine, turn, lambda status: status.questions)
        await engine.stop(turn)
        with anyio.fail_after(60), pytest.raises(TurnStoppedError):
            await engine.result(turn)
        [result] = results(await engine.messages("s"))
    assert "not started" in result


async def test_turn_awaiting_approval_stops_without_worker(
    engine,
):
    hooks = asking("provider:request", "May I go on?", lambda data: data["iteration"] == 2)
    look = tool("look", lambda given: "two shelves")
    make_session = agent(answering([("look", {})]), look, hooks=hooks)
    turn = await engine.start("s", "go")
    async with working(engine, make_session):
        await until(engine, turn, lambda status: status.questions)
    await engine.stop(turn)
    async with working(engine, make_session):
        with anyio.fail_after(30), pytest.raises(TurnStoppedError):
            await engine.result(turn)
    assert results(await engine.messages("s")) == ["two shelves"]
