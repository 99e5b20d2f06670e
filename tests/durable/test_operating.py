"""What operators do with turns on every engine: list and count them, let them wait in order, drain workers, upgrade plans, go on with children."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from amplifier import AmplifierSession, ModuleLoader
from amplifier.durable import (
    CallLimit,
    TurnConflictError,
    TurnFailedError,
    TurnHeldError,
    TurnStoppedError,
    UnknownTurnError,
)
from amplifier.durable._turns import Turns
from amplifier.errors import ResultError, SessionBusyError
from amplifier.testing import MockTool
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    eventually,
    hanging,
    mounting,
    tool,
    until,
    working,
)

pytestmark = pytest.mark.parametrize("kind", ENGINES)


async def test_turns_are_listed_by_filters(engine):
    began = time.time() - 1
    first = await engine.start("anna", "go")
    second = await engine.start("bert", "go")
    async with working(engine, agent(answering("Done."))):
        await until(engine, first, lambda status: status.is_final)
        await until(engine, second, lambda status: status.is_final)
    await engine.start("carl", "go")

    async def is_listed() -> bool:
        states = [each.state for each in await engine.list(since=began)]
        return len(states) == 3 and states.count("queued") == 1

    await eventually(is_listed)
    [waiting] = await engine.list(state="queued")
    assert (waiting.session_id, waiting.attempt, waiting.ended) == ("carl", 0, None)
    [found] = await engine.list(session="anna")
    status = await engine.status(first)
    assert (found.turn_id, found.state, found.attempt, found.takeovers) == (
        first,
        status.state,
        1,
        0,
    )
    assert found.started >= began
    assert found.ended is not None
    assert found.ended >= found.started
    assert await engine.list(since=time.time() + 3600) == []
    assert len(await engine.list(limit=1)) == 1
    counts = await engine.counts()
    assert sum(counts.states.values()) == 3
    assert (counts.states["queued"], counts.attempts, counts.takeovers) == (1, 0, 0)
    assert 0 <= counts.oldest < 3600
    with pytest.raises(ValueError, match="state must be one of queued, running"):
        await engine.list(state="waiting")


async def test_queued_turns_run_in_order(engine):
    answers = answering("One.", "Two.", "Three.")
    first = await engine.start("s", "1")
    second = await engine.start("s", "2", queue=True)
    third = await engine.start("s", "3", queue=True, turn_id="third")
    assert await engine.start("s", "3", queue=True, turn_id="third") == third
    with pytest.raises(SessionBusyError):
        await engine.start("s", "4")
    assert [(await engine.status(turn)).state for turn in (first, second, third)] == ["queued"] * 3
    async with working(engine, agent(answers)):
        assert [await engine.result(turn) for turn in (third, second, first)] == [
            "Three.",
            "Two.",
            "One.",
        ]
    messages = await engine.messages("s")
    assert [each["content"] for each in messages if each["role"] == "user"] == ["1", "2", "3"]


async def test_queued_turn_can_be_stopped(engine):
    first, second, third = [await engine.start("s", str(number), queue=True) for number in range(3)]
    await engine.stop(second)
    with anyio.fail_after(60), pytest.raises(TurnStoppedError):
        await engine.result(second)
    await engine.stop(first)
    async with working(engine, agent(answering("Done."))):
        assert await engine.result(third) == "Done."
    assert [each["content"] for each in await engine.messages("s")] == ["2", "Done."]


def waiting_agent(begun: anyio.Event, release: anyio.Event, name: str = "pay", **plan: Any):
    async def pay(_: Any) -> str:
        begun.set()
        await release.wait()
        return "paid"

    return agent(answering([(name, {})], "Paid."), tool(name, pay, repeatable=False), **plan)


async def test_draining_worker_hands_turn_over_after_call(engine):
    begun, release, calls = anyio.Event(), anyio.Event(), []
    answers = answering([("pay", {})], "Paid.")

    async def pay(_: Any) -> str:
        calls.append("pay")
        begun.set()
        await release.wait()
        return "paid"

    make_session = agent(answers, tool("pay", pay, repeatable=False))
    turn = await engine.start("s", "go")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def work() -> None:
                with scope:
                    await engine.work(make_session, drain=60)

            scope = anyio.CancelScope()
            group.start_soon(work)
            await begun.wait()
            scope.cancel()
            assert (await engine.status(turn)).state == "running"
            release.set()  # the worker ends when the call has, and begins no model call
        async with working(engine, make_session):
            assert await engine.result(turn) == "Paid."
    status = await engine.status(turn)
    assert (calls, status.attempt, status.takeovers) == (["pay"], 2, 0)
    assert "interrupted" not in str(await engine.messages("s"))


async def test_turn_waits_for_worker_with_its_plan(engine):
    begun, release = anyio.Event(), anyio.Event()
    old = waiting_agent(begun, release)
    new = waiting_agent(
        begun, release, agents={"helper": {"description": "helps"}}, tools=["tool-pay", "tool-pay"]
    )
    turn = await engine.start("s", "go")
    with anyio.fail_after(90):
        async with working(engine, old):
            await begun.wait()
        release.set()
        async with working(engine, new):
            held = await until(engine, turn, lambda status: status.state == "held")
            assert "the plan is not the one" in str(held.error)
            with pytest.raises(TurnHeldError, match="plan"):
                await engine.result(turn)

            async def is_listed() -> bool:
                return [each.error_type for each in await engine.list(state="held")] == [
                    "PlanChanged"
                ]

            await eventually(is_listed)
        async with working(engine, old):
            await engine.result(turn)
    assert (await engine.status(turn)).state == "completed"


def parent_and_child(begun: anyio.Event, release: anyio.Event, calls: list[str]):
    """A parent whose child looks, then pays, then answers."""
    asked: list[str] = []

    def answer(request: Any) -> Any:
        said = [message for message in request.messages if message.role == "tool"]
        is_child = any(
            "child's task" in str(message.content)
            for message in request.messages
            if message.role == "user"
        )
        asked.append("child" if is_child else "parent")
        if is_child:
            return [[("look", {})], [("wait", {})], "The child is finished."][len(said)]
        return (
            [("task", {"agent": "helper", "instruction": "the child's task"})]
            if not said
            else "All finished."
        )

    async def wait(_: Any) -> str:
        calls.append("wait")
        begun.set()
        await release.wait()
        return "waited"

    def look(_: Any) -> str:
        calls.append("look")
        return "two shelves"

    modules = {
        "provider-scripted": mounting(answering(*[answer] * 20)),
        "tool-look": mounting(MockTool("look", respond=look)),
        "tool-wait": mounting(tool("wait", wait, repeatable=True)),
    }
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-scripted"],
        "tools": ["tool-look", "tool-wait", "tool-task"],
        "agents": {"helper": {"description": "helps"}},
    }

    def make_session(session_id: str) -> AmplifierSession:
        return AmplifierSession(plan, ModuleLoader(modules=modules), session_id=session_id)

    return make_session, asked


async def test_interrupted_child_continues(engine):
    calls: list[str] = []
    begun, release = anyio.Event(), anyio.Event()
    make_session, asked = parent_and_child(begun, release, calls)
    turn = await engine.start("s", "go")
    with anyio.fail_after(90):
        async with working(engine, make_session):
            await begun.wait()
        assert asked == ["parent", "child", "child"]
        release.set()
        async with working(engine, make_session):
            assert await engine.result(turn) == "All finished."
    assert calls == ["look", "wait", "wait"]  # the second wait was cut off, and may be repeated
    assert asked == ["parent", "child", "child", "child", "parent"]
    [result] = [each for each in await engine.messages("s") if each["role"] == "tool"]
    assert "The child is finished." in str(result["content"])
    assert 'model_calls": 3' in str(result["content"])  # those before the cut count as well


async def test_delayed_turn_waits_and_late_one_fails(engine):
    make_session = agent(answering([("hang", {})]), hanging()[0])
    async with working(engine, make_session):
        later = await engine.start("later", "go", delay=3600)
        late = await engine.start("late", "go", deadline=2)
        with anyio.fail_after(60), pytest.raises(TurnFailedError) as caught:
            await engine.result(late)
        assert caught.value.error_type == "ExecutionTimeout"
        status = await engine.status(later)
        assert (status.state, status.attempt) == ("queued", 0)
        await engine.stop(later)
        with anyio.fail_after(60), pytest.raises(TurnStoppedError):
            await engine.result(later)
        wrongs: list[dict[str, Any]] = [
            {"priority": 0},
            {"delay": -1},
            {"deadline": 0},
            {"priority": True},
            {"delay": True},
        ]
        wrongs += [
            {"delay": 10**400},
            {"delay": 1e300},
            {"deadline": "5"},
            {"delay": 5, "deadline": 5},
        ]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="priority must be 1 to 5"):
                await engine.start("s", "go", **wrong)


async def test_turn_with_higher_priority_is_first(engine):
    order: list[str] = []

    def make_session(session_id: str) -> AmplifierSession:
        order.append(session_id)
        return agent(answering("Done."))(session_id)

    turns = [await engine.start(f"s{number}", "go", priority=number) for number in (5, 3, 1)]
    with anyio.fail_after(60):
        async with working(engine, make_session, concurrency=1):
            for turn in turns:
                await engine.result(turn)
    assert order == ["s1", "s3", "s5"]


async def test_old_ended_turns_are_forgotten(engine):
    turn = await engine.start("s", "go")
    async with working(engine, agent(answering("Done."))):
        await engine.result(turn)
    with pytest.raises(ValueError, match="older_than must be a number"):
        await engine.forget(older_than=float("nan"))
    assert await engine.forget(older_than=3600) == 0
    assert await engine.forget(older_than=-1) == 1
    with pytest.raises(UnknownTurnError):
        await engine.status(turn)
    assert len(await engine.messages("s")) == 2


async def test_concurrent_calls_of_tool_are_limited(engine):
    running: list[int] = [0]
    seen: list[int] = []

    async def pay(_: Any) -> str:
        running[0] += 1
        seen.append(running[0])
        await anyio.lowlevel.checkpoint()
        running[0] -= 1
        return "paid"

    limits = {"pay": CallLimit(at_once=1, per_second=1000), "model": CallLimit(per_second=1000)}

    def make_session(session_id: str) -> AmplifierSession:
        return agent(answering([("pay", {})] * 4, "Paid."), tool("pay", pay))(session_id)

    async with working(engine, make_session, limits=limits):
        for turn in [await engine.start(f"s{number}", "go") for number in range(3)]:
            assert await engine.result(turn) == "Paid."
    assert seen == [1] * 12
    with pytest.raises(ValueError, match="at_once"):
        CallLimit(at_once=0)


@pytest.mark.parametrize(("repeatable", "calls"), [(True, 3), (False, 1), (None, 1)])
async def test_failed_repeatable_tool_is_retried(engine, repeatable, calls):
    tried: list[str] = []

    def look(_: Any) -> str:
        tried.append("look")
        if len(tried) < 3:
            raise ConnectionError("the shop does not answer")
        return "two shelves"

    make_session = agent(
        answering([("look", {})], "Done."), tool("look", look, repeatable=repeatable)
    )
    limits = {"look": CallLimit(retries=5, backoff=0.001)}
    async with working(engine, make_session, limits=limits):
        assert await engine.result(await engine.start("s", "go")) == "Done."
        [result] = [each for each in await engine.messages("s") if each["role"] == "tool"]
    assert len(tried) == calls
    assert ("two shelves" in str(result["content"])) is (calls == 3)


async def test_failing_tool_is_retried_to_limit(
    engine,
):
    """The model gets the error."""
    tried: list[str] = []

    def look(_: Any) -> str:
        tried.append("look")
        raise ConnectionError("the shop does not answer")

    make_session = agent(
        answering([("look", {}), ("gone", {})], "Done."), tool("look", look, repeatable=True)
    )
    limits = {name: CallLimit(retries=2, backoff=0.001) for name in ("look", "gone")}
    async with working(engine, make_session, limits=limits):
        assert await engine.result(await engine.start("s", "go")) == "Done."
        results = [
            str(each["content"]) for each in await engine.messages("s") if each["role"] == "tool"
        ]
    assert len(tried) == 3
    assert "the shop does not answer" in results[0]
    with pytest.raises(ValueError, match="retries"):
        CallLimit(retries=-1)


@attrs.frozen
class City:
    name: str
    people: int


async def test_turn_answer_has_requested_type(engine):
    begun = anyio.Event()

    async def look(_: Any) -> str:
        if not begun.is_set():
            begun.set()
            await anyio.sleep_forever()
        return "two million"

    answers = answering(
        [("look", {})], '{"name": "Paris", "people": 2000000}', '{"result": [1, 2]}', "no JSON"
    )
    make_session = agent(answers, tool("look", look, repeatable=True))
    turn = await engine.start("s", "which city?", result_type=City)
    with anyio.fail_after(60):
        async with working(engine, make_session):
            await begun.wait()
        async with working(engine, make_session):  # the type is stored with the turn
            assert await engine.result(turn, result_type=City) == City("Paris", 2_000_000)
            with pytest.raises(ResultError):
                await engine.result(turn, result_type=list[int])
            numbers = await engine.start("t", "which numbers?", result_type=list[int])
            assert await engine.result(numbers, result_type=list[int]) == [1, 2]
    assert (await engine.status(turn)).answer == '{"name":"Paris","people":2000000}'
    with pytest.raises(TurnConflictError):
        await engine.start("s", "which city?", turn_id=turn)
    with pytest.raises(TypeError, match="JSON Schema"):
        await engine.start("u", "go", result_type=anyio.Event)


async def test_tool_with_unreadable_declaration_is_not_retried(engine):
    tried: list[str] = []

    class Look:
        name = "look"
        description = "Looks."

        @property
        def repeatable(self) -> bool:
            raise OSError("no one knows")

        async def execute(self, given: dict[str, Any]) -> Any:
            tried.append("look")
            raise ConnectionError("the shop does not answer")

    make_session = agent(answering([("look", {})], "Done."), Look())
    limits = {"look": CallLimit(retries=2, backoff=0.001)}
    async with working(engine, make_session, limits=limits):
        assert await engine.result(await engine.start("s", "go")) == "Done."
    assert tried == ["look"]


async def test_schedule_repeats_until_removed(engine):
    async with working(engine, agent(answering(*["Done."] * 100))):
        began = time.time()
        await engine.schedule("tick", "anna", "not any more", every=86400)
        await engine.schedule("tick", "anna", "go", every=1, first=began - 0.5)

        async def is_listed() -> bool:
            found = await engine.schedules()
            return [(each.name, each.session_id, each.prompt, each.every) for each in found] == [
                ("tick", "anna", "go", 1)
            ]

        async def has_run_twice() -> bool:
            return len(await engine.list(session="anna", state="completed")) >= 2

        await eventually(is_listed)
        await eventually(has_run_twice)
        found = await engine.list(session="anna")
        assert len({each.turn_id for each in found}) == len(found)
        assert all(each.turn_id.startswith("tick-2") for each in found)
        assert await engine.unschedule("tick")
        assert not await engine.unschedule("tick")
        await eventually(lambda: _is_empty(engine))
        assert (await engine.messages("anna"))[0]["content"] == "go"


async def test_schedule_removed_during_its_turn_ends(engine, monkeypatch):
    """The worker has read the schedule, and starts its turn, when the application removes it."""
    start = Turns.start

    def start_and_remove(turns, *arguments):
        start(turns, *arguments)
        turns.unschedule("tick")

    monkeypatch.setattr(Turns, "start", start_and_remove)
    async with working(engine, agent(answering("Done."))):
        await engine.schedule("tick", "anna", "go", every=1, first=time.time() - 0.5)

        async def has_run() -> bool:
            return bool(await engine.list(session="anna", state="completed"))

        await eventually(has_run)
    assert not await engine.schedules()


async def _is_empty(engine) -> bool:
    return not await engine.schedules()


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0},
        {"every": 1.5},
        {"every": True},
        {"every": 60, "first": -1.0},
        {"every": 60, "name": "x" * 171},
    ],
)
async def test_senseless_schedule_is_refused(engine, wrong):
    with pytest.raises(ValueError, match="every must be a whole number"):
        await engine.schedule(**{"name": "tick", "session_id": "anna", "prompt": "go", **wrong})
    assert await engine.schedules() == []
