"""Guards of turns in one process: consents, races of stops and resumes, releases, suspects, large events."""

from __future__ import annotations

import threading
import time

import anyio
import anyio.to_thread
import pytest
import sqlalchemy as sa

from amplifier._internal.json import redact_secrets
from amplifier.durable import Schedule, TurnFailedError, TurnStoppedError
from amplifier.durable import _running_turn as running_turn
from amplifier.durable._suspects import Settings
from amplifier.durable._turns import marks_of
from amplifier.durable._worker import LoopWatch
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    asking_agent,
    die_with,
    eventually,
    hand_over,
    hanging,
    open_engine,
    tool,
    until,
    working,
)

KINDS = pytest.mark.parametrize("kind", ENGINES)


@KINDS
async def test_consent_permits_one_repeat(engine):
    paid: list[anyio.Event] = []
    begun = anyio.Event()

    async def pay(given):
        paid.append(begun)
        begun.set()
        await anyio.sleep_forever()

    make_session = agent(answering([("pay", {})]), tool("pay", pay))
    asked = []
    turn = await engine.start("s", "pay")
    async with working(engine, make_session):
        await begun.wait()
    question = None
    for answers_at_once in (True, False):
        begun = anyio.Event()
        async with working(engine, make_session):
            [question] = (await until(engine, turn, lambda status: status.questions)).questions
            asked.append(question.question_id)
            if answers_at_once:
                await engine.approve(turn, question.question_id, question.options[0])
                await begun.wait()
    assert question is not None
    await engine.approve(turn, question.question_id, question.options[0])  # while no worker runs
    async with working(engine, make_session):
        await begun.wait()
    async with working(engine, make_session):
        [question] = (await until(engine, turn, lambda status: status.questions)).questions
        asked.append(question.question_id)
    assert len(paid) == 3
    assert len(set(asked)) == 3


@KINDS
async def test_stuck_worker_loses_its_turn(engine):
    attempts = []
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(given):
        attempts.append(1)
        if len(attempts) == 1:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()
        return "done"

    def again(request):
        return "Done." if request.messages[-1].role == "tool" else [("hang", {})]

    make_session = agent(answering(again, again), tool("hang", hang, repeatable=True))
    turn = await engine.start("s", "go")
    await engine.release(turn)  # nothing happens to a turn that does not run
    async with working(engine, make_session):
        await begun.wait()
        await engine.release(turn)
        assert await engine.result(turn) == "Done."
        await ended.wait()
        await engine.release(turn)
    status = await engine.status(turn)
    assert (status.state, status.attempt) == ("completed", 2)


@KINDS
async def test_graceful_stop_leaves_immediate_stop_intact(engine):
    turn = await engine.start("s", "go")
    await hand_over(engine)
    await engine.stop(turn, reason="enough")
    await engine.stop(turn, graceful=True, reason="when you are ready")
    stop = await engine._do(lambda: engine._turns.stop_of(marks_of(engine._turns.row(turn))))
    assert (stop.graceful, stop.reason) == (False, "enough")


@KINDS
async def test_turn_killing_workers_fails_keeping_work(kind, place):
    hang, begun = hanging()
    tools = tool("look", lambda given: "two shelves"), hang
    async with open_engine(kind, place, attempts=3) as engine:
        turn = await engine.start("s", "go")
        async with working(engine, agent(answering([("look", {})], [("hang", {})]), *tools)):
            await begun.wait()
        await die_with(engine, turn, 3)
        async with working(engine, agent(answering("unreached"), *tools)):
            with (
                anyio.fail_after(60),
                pytest.raises(TurnFailedError, match="3 workers died while they ran this turn"),
            ):
                await engine.result(turn)
        messages = await engine.messages("s")
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert messages[2]["content"] == "two shelves"


@KINDS
async def test_orderly_hand_overs_are_not_deaths(kind, place):
    async with open_engine(kind, place, attempts=1) as engine:
        turn = await engine.start("s", "go")
        for _ in range(3):
            await hand_over(engine, repeatable=True)
        async with working(
            engine, agent(answering("Done."), tool("hang", lambda given: "x", repeatable=True))
        ):
            assert await engine.result(turn) == "Done."


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres"])
async def test_worker_keeps_no_listening_connection(engine):
    """DBOS could be ended while its listener connected, and then that connection stayed open."""
    listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    async with working(engine, agent(answering("Done."))):
        assert await engine.result(await engine.start("s", "go")) == "Done."
        with engine._do.engine.connect() as connection:
            assert connection.execute(sa.text(listening)).scalar_one() == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_propagates_from_worker(backend, tmp_path):
    def press_ctrl_c(given):
        raise KeyboardInterrupt

    async def work():
        async with open_engine("sqlite", tmp_path) as engine:
            await engine.start("s", "go")
            await engine.work(agent(answering([("press", {})]), tool("press", press_ctrl_c)))

    with pytest.raises(KeyboardInterrupt):
        anyio.run(work, backend=backend)


async def test_suspect_runs_alone_beside_waiting_turns(tmp_path):
    events: list[str] = []
    go_on = {"before": anyio.Event(), "suspect": anyio.Event(), "after": anyio.Event()}
    begun = {name: anyio.Event() for name in go_on}
    ask = asking_agent(tmp_path)

    def make_session(session_id):
        if session_id == "asks":
            return ask(session_id)

        async def note(given):
            events.append(f"{session_id} begins")
            begun[session_id].set()
            await go_on[session_id].wait()
            events.append(f"{session_id} ends")
            return "x"

        return agent(answering([("note", {})], "Done."), tool("note", note))(session_id)

    async with open_engine("sqlite", tmp_path, lease=3.0) as engine:
        suspect = await engine.start("suspect", "go")
        await die_with(engine, suspect, 2)
        async with working(engine, make_session):
            asks = await engine.start("asks", "go")
            before = await engine.start("before", "go")
            await until(engine, asks, lambda status: status.questions)
            await begun["before"].wait()
            go_on["before"].set()
            await begun["suspect"].wait()
            after = await engine.start("after", "go")
            go_on["after"].set()
            go_on["suspect"].set()
            for turn in (before, suspect, after):
                assert await engine.result(turn) == "Done."
            await engine.stop(asks)
            with pytest.raises(TurnStoppedError):
                await engine.result(asks)
    assert all(
        events[place + 1] == f"{events[place].split()[0]} ends" for place in range(0, 6, 2)
    ), events


async def test_secret_search_covers_shown_part_only(tmp_path, monkeypatch):
    searched: list[tuple[int, bool]] = []
    redact = redact_secrets

    def note_and_redact(value):
        searched.append((len(str(value)), threading.current_thread() is threading.main_thread()))
        return redact(value)

    monkeypatch.setattr(running_turn, "redact_secrets", note_and_redact)
    secret = "sk-" + "a1B2" * 12
    look = tool("look", lambda given: {"text": "large " * 1_000_000, "key": secret})
    middle = tool("middle", lambda given: {"api_key": secret, "text": "middle " * 1000})
    make_session = agent(answering([("look", {})], [("middle", {})], "Two."), look, middle)
    async with open_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        with anyio.fail_after(100):
            events = [event async for event in engine.watch(turn)]
    assert max(size for size, _ in searched) < 20_000
    assert not any(is_loop for _, is_loop in searched)
    assert secret not in repr(events)
    [first, second] = [event.data for event in events if event.name == "tool:post"]
    assert (first["truncated"], first["tool_name"], "result" in first) == (True, "look", False)
    assert "middle middle" in str(second)


async def test_request_event_has_last_messages(tmp_path):
    """Each request repeats the conversation, and its events would grow with the square of it."""
    look = tool("look", lambda given: "seen", repeatable=True)
    make_session = agent(answering(*[[("look", {})]] * 4, "Done."), look)
    async with open_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        events = [
            event.data async for event in engine.watch(turn) if event.name == "provider:request"
        ]
    assert [len(data["messages"]) for data in events] == [1, 3, 4, 4, 4]
    assert [data.get("messages_left_out", 0) for data in events] == [0, 0, 1, 3, 5]
    assert events[-1]["messages"][-1]["role"] == "tool"


def test_stalled_loop_is_reported_once(caplog):
    """The watch gives up after its limit."""
    watch = LoopWatch(Settings(poll=0.1, lease=4.0, stuck=10.0))
    assert not any(
        watch.is_stuck() for _ in range(10)
    )  # looks a second apart, one too many for a lease
    assert watch.is_stuck()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the event loop of this worker stands still for 5 s" in caplog.text
    watch.note_life()
    assert not watch.is_stuck()


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 2.5},
        {"stuck": -1},
        {"lease": float("nan")},
        {"poll": "1"},
        {"patience": -1},
        {"patience": "1"},
    ],
)
async def test_senseless_numbers_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be a"):
        async with open_engine("sqlite", tmp_path, **options):
            pass


async def test_suspect_waits_longer_each_time():
    options = Settings(poll=0.1, lease=5.0)
    assert [options.pause_after(deaths) for deaths in range(5)] == [0, 0, 5.0, 0, 0]
    options = Settings(poll=0.1, lease=5.0, attempts=5)
    assert [options.pause_after(deaths) for deaths in range(7)] == [0, 0, 0, 5.0, 10.0, 0, 0]
    assert Settings(poll=0.1, lease=5.0, attempts=100).pause_after(99) == 60.0


@KINDS
async def test_missed_schedule_runs_once(engine):
    earlier = time.time() - 5.5 * 3600
    missed = Schedule(name="hourly", session_id="anna", prompt="go", every=3600, next_at=earlier)
    await engine._do(lambda: engine._turns.schedule(missed))
    assert await engine.list() == []
    async with working(engine, agent(answering("Done."))):

        async def has_looked() -> bool:
            return [found.next_at > time.time() for found in await engine.schedules()] == [True]

        await eventually(has_looked)
        [turn] = await engine.list()
        assert await engine.result(turn.turn_id) == "Done."
    [found] = await engine.schedules()
    assert found.next_at == pytest.approx(earlier + 6 * 3600)
