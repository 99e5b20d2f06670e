"""What only the engine on Temporal can get wrong: news is delivered to a worker once, and the SDK has a thread and tasks of its own."""

from __future__ import annotations

import gc
from functools import partial

import anyio
import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

import amplifier.durable.temporal as module
from amplifier.durable import (
    DurableError,
    EngineClosedError,
    QuestionClosedError,
    TurnConflictError,
    TurnStoppedError,
)
from amplifier.durable._temporal_server import Server, WorkflowGone, open_asyncio_thread
from amplifier.durable._temporal_turns import TemporalTurns, TurnRecord
from amplifier.durable._values import TurnPolicy
from amplifier.durable.temporal import _Host
from amplifier.errors import SessionBusyError
from tests.durable import agents
from tests.durable.agents import MAY_LEAVE, agent, answering, asking_agent, eventually, tool, until, working

pytestmark = [pytest.mark.slow, MAY_LEAVE, pytest.mark.parametrize("kind", ["temporal"])]


open_engine = partial(agents.open_engine, patience=60.0)  # no test here is about a server that is slow


def turns_of(engine) -> TemporalTurns:
    return engine._turns


def server_of(engine) -> Server:
    return engine._turns.server


def hold_until_news(monkeypatch, method):
    """Let the reply of the server to a method of the record arrive, but its task not go on until the worker has heard news.

    Returns:
        An event that is set when the reply has arrived.
    """
    replied, heard = anyio.Event(), anyio.Event()
    original, hear_news = getattr(TurnRecord, method), _Host._hear_news

    async def held(record, *args):
        reply = await original(record, *args)
        replied.set()
        await heard.wait()
        return reply

    def hear(host, *args):
        hear_news(host, *args)
        heard.set()

    monkeypatch.setattr(TurnRecord, method, held)
    monkeypatch.setattr(_Host, "_hear_news", hear)
    return replied


async def test_an_answer_that_arrives_before_its_question_waits_is_kept(kind, place, tmp_path, monkeypatch):
    replied = hold_until_news(monkeypatch, "ask")
    async with open_engine(kind, place) as engine, working(engine, asking_agent(tmp_path)):
        turn = await engine.start("s", "pay")
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
        await replied.wait()
        await engine.stop(turn, graceful=graceful)
        with pytest.raises(TurnStoppedError):
            await engine.result(turn)
    assert calls == []


async def test_leaving_the_engine_ends_its_worker_and_hands_the_turn_over(kind, place, monkeypatch):
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(given):
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    first = agent(answering([("look", {})]), tool("look", hang, repeatable=True))
    second = agent(answering("Two."), tool("look", lambda given: "two shelves", repeatable=True))
    monkeypatch.setattr(module, "_ENDING_SECONDS", 60.0)  # however slow this machine is
    monkeypatch.setattr(module, "_LEAVING_SECONDS", 60.0)

    # With this lease no other worker would get the turn in time if it were not handed over.
    async def work(engine, *, task_status):
        with pytest.raises(EngineClosedError):
            await engine.work(first, task_status=task_status)

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            async with open_engine(kind, place, lease=600.0) as engine:
                await group.start(work, engine)
                turn = await engine.start("s", "go")
                await begun.wait()
            assert ended.is_set()
        async with open_engine(kind, place, lease=600.0) as engine, working(engine, second):
            assert await engine.result(turn) == "Two."


async def test_leaving_the_engine_waits_only_so_long_for_a_worker_that_does_not_end(kind, place, monkeypatch):
    begun, go_on = anyio.Event(), anyio.Event()

    async def hang(given):
        begun.set()
        with anyio.CancelScope(shield=True):
            await go_on.wait()

    async def work(engine, *, task_status):
        with pytest.raises(EngineClosedError):
            await engine.work(agent(answering([("look", {})]), tool("look", hang)), task_status=task_status)

    monkeypatch.setattr(module, "_LEAVING_SECONDS", 0.05)
    monkeypatch.setattr(module, "_ENDING_SECONDS", 0.05)
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            async with open_engine(kind, place) as engine:
                await group.start(work, engine)
                await engine.start("s", "go")
                await begun.wait()
            go_on.set()


async def test_leaving_the_engine_in_a_cancelled_scope_ends_its_worker(kind, place):
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group, open_engine(kind, place) as engine:
            await group.start(engine.work, agent(answering("Hello.")))
            group.cancel_scope.cancel()


async def test_a_client_that_waits_when_the_engine_is_left_is_told_that_it_is_closed(kind, place):
    refused = []

    async def wait(engine, turn):
        try:
            await engine.result(turn)
        except EngineClosedError as error:
            refused.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, open_engine(kind, place) as engine:
            group.start_soon(wait, engine, await engine.start("s", "go"))
            await anyio.wait_all_tasks_blocked()
    assert len(refused) == 1


async def at_once(*calls):
    """What calls that run at the same time return or raise."""
    outcomes = []

    async def run(call):
        try:
            outcomes.append(await call())
        except Exception as error:
            outcomes.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(run, call)
    return outcomes


async def test_of_two_contradictory_answers_one_is_refused(kind, place, tmp_path):
    async with open_engine(kind, place) as engine:
        turns = [await engine.start(f"s{number}", "pay") for number in range(5)]
        async with working(engine, asking_agent(tmp_path)):
            asked = [(await until(engine, turn, lambda status: status.questions)).questions[0] for turn in turns]
        refused = []
        for turn, question in zip(turns, asked, strict=True):
            outcomes = await at_once(
                *(partial(engine.approve, turn, question.question_id, option) for option in ("Allow", "Deny"))
            )
            errors = [each for each in outcomes if each is not None]
            assert [type(error) for error in errors] == [QuestionClosedError]
            assert "does not wait for an answer" in str(errors[0])
            for option in ("Allow", "Deny"):  # the same answer again is no other one
                refused += await at_once(partial(engine.approve, turn, question.question_id, option))
        assert sum(each is None for each in refused) == len(turns)


@pytest.mark.parametrize("worker", ["before", "after"])
async def test_the_answer_that_was_not_refused_counts(kind, place, tmp_path, worker):
    async with open_engine(kind, place) as engine:
        turn = await engine.start("s", "pay")
        async with working(engine, asking_agent(tmp_path)):
            [question] = (await until(engine, turn, lambda status: status.questions)).questions
            if worker == "before":
                await engine.approve(turn, question.question_id, "Deny")
        if worker == "after":
            await engine.approve(turn, question.question_id, "Deny")
        async with working(engine, asking_agent(tmp_path)):
            assert await engine.result(turn) == "Paid."
        assert "denied" in (await engine.messages("s"))[2]["content"]
    assert not (tmp_path / "s.effects").exists()


async def test_turns_that_are_started_at_the_same_time_in_one_session_are_refused_as_busy(kind, place):
    async with open_engine(kind, place) as engine:
        for session in ("a", "b", "c"):
            outcomes = await at_once(*[partial(engine.start, session, "go")] * 6)
            assert sorted(type(each).__name__ for each in outcomes) == [*["SessionBusyError"] * 5, "str"]
            assert all(isinstance(each, SessionBusyError | str) for each in outcomes)


async def test_a_session_whose_turn_is_just_being_started_is_busy(kind, place, monkeypatch):
    """Its workflow knows the turn a moment before the turn's own workflow exists; here that moment lasts."""
    query = Server.query

    async def query_without_turns(server, workflow_id, *args):
        if "-turn-" in workflow_id:
            raise WorkflowGone
        return await query(server, workflow_id, *args)

    async with open_engine(kind, place) as engine:
        first = await engine.start("s", "go")
        monkeypatch.setattr(Server, "query", query_without_turns)
        with anyio.fail_after(60), pytest.raises(SessionBusyError, match=first):
            await engine.start("s", "go on")


async def test_one_turn_that_is_started_several_times_at_once_is_started_once(kind, place):
    async with open_engine(kind, place) as engine:
        for turn in ("a", "b", "c"):

            async def start_and_look(turn=turn):
                await engine.start(f"s-{turn}", "go", turn_id=turn)
                return (await engine.status(turn)).state

            assert await at_once(*[start_and_look] * 6) == ["queued"] * 6


async def test_of_two_turns_with_one_id_that_are_started_at_once_one_is_refused(kind, place):
    async with open_engine(kind, place) as engine:
        for turn in ("a", "b", "c"):
            outcomes = await at_once(
                *(partial(engine.start, f"s-{turn}", prompt, turn_id=turn) for prompt in ("go", "stay"))
            )
            errors = [each for each in outcomes if each != turn]
            assert [type(error) for error in errors] == [TurnConflictError]


async def test_a_refusal_of_the_server_leaves_no_error_that_no_one_took(kind, place, caplog):
    async with open_engine(kind, place) as engine:
        with anyio.fail_after(60):
            with pytest.raises(DurableError, match="refused a call"):
                await turns_of(engine).start("s", "go", "t" * 2000, False, TurnPolicy())  # a workflow has no such id
            await engine.start("s", "go")
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_turns_that_were_due_while_no_engine_was_open_are_made_up_for_by_one(kind, place):
    """The server keeps the time: it starts one workflow, which waits, and skips what is due meanwhile."""
    address, _, queue = place.partition("/")
    async with open_engine(kind, place) as engine:
        await engine.schedule("tick", "anna", "go", every=1)
    async with open_asyncio_thread() as thread:
        client = await thread.call(partial(Client.connect, address, runtime=module._sdk_runtime()))
        schedule = client.get_schedule_handle(f"{queue}-schedule-tick")

        async def has_skipped() -> bool:
            return (await thread.call(schedule.describe)).info.num_actions_skipped_overlap >= 2

        await eventually(has_skipped)
        await thread.call(schedule.delete)
    async with open_engine(kind, place) as engine, working(engine, agent(answering(*["Done."] * 9))):

        async def has_run() -> bool:
            return bool(await engine.list(state="completed"))

        await eventually(has_run)
        [turn] = await engine.list()
    assert turn.turn_id.startswith("tick-2")


async def test_an_update_that_no_worker_processed_is_sent_again(kind):
    """A server that was restarted refuses an update of a workflow whose task was lost."""
    lost = ApplicationError("it was not processed by worker", type="UnprocessedUpdate")
    outcomes: list[object] = [WorkflowUpdateFailedError(lost), "done"]

    class Thread:
        async def call(self, fn):
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    server = Server(Thread(), None, "a server", patience=5.0)  # type: ignore[arg-type]
    with anyio.fail_after(60):
        assert await server.call(lambda: None) == "done"  # type: ignore[arg-type,return-value]
