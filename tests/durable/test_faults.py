"""Engines that are not there, go away or are newer, and workers that were taken for dead: one clear error each, nothing lost."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from functools import partial

import anyio
import anyio.to_thread
import pytest
from dbos import DBOS

import amplifier.durable.dbos as module
from amplifier.durable import (
    DurableError,
    EngineUnavailableError,
    TurnFailedError,
    open_local_engine,
)
from amplifier.durable._database import DatabaseDown, SqliteDatabase, opened
from amplifier.durable._errors import TurnLost
from amplifier.durable._running_turn import RunningTurn
from amplifier.durable._turn_store import move
from amplifier.durable._values import StopRequest
from amplifier.durable.dbos import open_dbos_engine
from amplifier.durable.temporal import open_temporal_engine
from amplifier.errors import SessionStateError
from tests._support.engine_servers import postgres, temporal
from tests._support.programs import run_program
from tests.durable.agents import (
    MAY_LEAVE,
    agent,
    answering,
    asking,
    effect_agent,
    eventually,
    hanging,
    open_engine,
    store_of,
    tool,
    until,
    working,
)
from tests.modules.durable_agent import transcript_problems

FILES = {"local": "turns.db", "dbos": "dbos.sqlite"}


@pytest.mark.parametrize("kind", FILES)
async def test_tables_of_a_newer_version_are_refused_and_left_as_they_are(kind, tmp_path):
    async with open_engine(kind, tmp_path) as engine:
        turn = await engine.start("s", "go")
    with closing(sqlite3.connect(tmp_path / FILES[kind])) as connection:
        connection.execute("UPDATE amplifier_format SET format = 99")
        connection.commit()
    with pytest.raises(DurableError, match="format 99; this version of amplifier knows formats up to 1"):
        async with open_engine(kind, tmp_path):
            pass
    with closing(sqlite3.connect(tmp_path / FILES[kind])) as connection:
        connection.execute("UPDATE amplifier_format SET format = 1")
        connection.commit()
    async with open_engine(kind, tmp_path) as engine:
        assert (await engine.status(turn)).state == "queued"


async def test_a_file_that_cannot_be_used_is_reported_when_the_engine_is_opened(tmp_path):
    with pytest.raises(EngineUnavailableError, match=r"missing/turns.db does not answer .*No such file") as caught:
        async with open_local_engine(tmp_path / "missing" / "turns.db"):
            pass
    assert caught.value.engine.endswith("missing/turns.db")


async def test_a_server_that_is_not_there_is_reported_without_its_password():
    with anyio.fail_after(60), pytest.raises(EngineUnavailableError, match="refused") as caught:
        async with open_dbos_engine("postgresql://anna:opensesame@127.0.0.1:9/turns"):
            pass
    assert "127.0.0.1:9/turns" in str(caught.value)
    assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://host/database", "postgresql://host", "sqlite://", "turns.db", ""])
async def test_a_url_of_another_kind_is_refused(url):
    with pytest.raises(ValueError, match="must be postgresql://user:password@host/database or sqlite:///path"):
        async with open_dbos_engine(url):
            pass


async def test_a_process_has_one_worker_on_dbos(tmp_path):
    async with open_engine("dbos", tmp_path) as engine, working(engine, agent(answering("Hello."))):
        with pytest.raises(SessionStateError, match="DBOS runs in this process already, with a worker of amplifier"):
            await engine.work(agent(answering("Hello.")))
        assert await engine.result(await engine.start("s", "hi")) == "Hello."


@asynccontextmanager
async def locked(engine, file):
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@asynccontextmanager
async def full(engine, file):
    """SQLite is given no more pages, which it reports as it reports a full disk."""
    await store_of(engine)._do(
        lambda run: run("PRAGMA max_page_count = 1")
    )  # less than there is: no more than there is
    yield
    await store_of(engine)._do(lambda run: run("PRAGMA max_page_count = 1000000"))


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        pytest.param(locked, "locked", marks=pytest.mark.slow, id="locked for too long"),
        pytest.param(full, "disk is full", id="on a full disk"),
    ],
)
async def test_a_file_that_cannot_be_written_ends_the_worker_and_the_next_one_goes_on(tmp_path, trouble, message):
    begun, go_on, failed = anyio.Event(), anyio.Event(), anyio.Event()

    async def look(given):
        begun.set()
        await go_on.wait()
        return "two shelves " * 10_000

    make_session = agent(answering([("look", {})]), tool("look", look, repeatable=True))
    async with open_local_engine(tmp_path / "turns.db", poll=0.02, lease=1.0, patience=0.1) as engine:
        turn = await engine.start("s", "go")

        async def work():
            with pytest.raises(EngineUnavailableError, match=message):
                await engine.work(make_session)
            failed.set()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await begun.wait()
                async with trouble(engine, tmp_path / "turns.db"):
                    go_on.set()
                    await failed.wait()
        async with working(engine, agent(answering("Two."), tool("look", lambda given: "seen again", repeatable=True))):
            assert await engine.result(turn) == "Two."
        assert (await engine.messages("s"))[2]["content"] == "seen again"


@pytest.mark.slow
async def test_a_file_that_is_locked_when_the_engine_is_opened_is_waited_for(tmp_path):
    refused = []

    class Database(SqliteDatabase):
        def transaction(self, work, *, only_reads=False):
            try:
                return super().transaction(work, only_reads=only_reads)
            except DatabaseDown as error:
                refused.append(error)
                other.execute("ROLLBACK")
                raise

    async with open_local_engine(tmp_path / "turns.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "turns.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with anyio.fail_after(60):
            database = Database(tmp_path / "turns.db", patience=30.0)
            async with opened(database):
                assert await database(lambda run: run("SELECT COUNT(*) FROM amplifier_turns")) == [(0,)]
    assert len(refused) == 1


@pytest.mark.parametrize("which", ["start", "claim", "_record", "add_events", "finish"])
async def test_a_connection_that_is_lost_while_a_change_is_committed_loses_nothing(which, tmp_path, monkeypatch):
    """The change was made, and the one who made it is not told. Trying again must not take it for somebody else's."""
    lost: list[str] = []

    class Database(SqliteDatabase):
        def transaction(self, work, *, only_reads=False):
            done = super().transaction(work, only_reads=only_reads)
            if f".{which}." in f"{work.__qualname__}." and not lost:
                lost.append(which)
                raise DatabaseDown("the connection was lost")
            return done

    monkeypatch.setattr("amplifier.durable._local.SqliteDatabase", Database)
    calls: list[str] = []

    async def is_lost() -> bool:
        return which != "add_events" or bool(lost)  # events are stored now and then, while a turn runs

    async def pay(_: object) -> str:
        calls.append("paid")
        await eventually(is_lost)
        return "paid"

    make_session = agent(answering([("pay", {})], "Paid."), tool("pay", pay))
    async with open_engine("local", tmp_path) as engine, working(engine, make_session):
        turn = await engine.start("s", "pay")
        assert await engine.result(turn) == "Paid."
        assert (await engine.status(turn)).attempt == 1
    assert (lost, calls) == ([which], ["paid"])


async def test_a_worker_that_has_lost_a_turn_does_not_withdraw_the_question_of_the_next_one(tmp_path):
    make_session = agent(answering([("pay", {})]), tool("pay", lambda given: "paid"), hooks=asking())
    async with open_engine("local", tmp_path) as engine, anyio.create_task_group() as group:
        store = store_of(engine)
        turn = await engine.start("s", "pay")
        claimed = await store.claim(turn, "late")
        assert claimed is not None
        late = RunningTurn(store, claimed)
        ended = anyio.Event()

        async def run():
            assert not await late.run(make_session)
            ended.set()

        group.start_soon(run)
        [question] = (await until(engine, turn, lambda status: status.questions)).questions
        await engine.release(turn)
        again = await store.claim(turn, "next")
        assert again is not None
        assert await store.ask(again, question) is None
        late.lose()
        with anyio.fail_after(60):
            await ended.wait()
        await late.flush()
        with pytest.raises(TurnLost):
            await store.withdraw(claimed, question.question_id)
        assert (await engine.status(turn)).questions == (question,)


@pytest.mark.parametrize("is_graceful", [False, True])
async def test_a_stop_that_arrives_while_records_are_played_back_keeps_all_of_them(tmp_path, is_graceful):
    hang, begun = hanging()
    look = tool("look", lambda given: "two shelves")
    async with open_engine("local", tmp_path) as engine:
        turn = await engine.start("s", "go")
        async with working(engine, agent(answering([("look", {})], [("look", {})], [("hang", {})]), look, hang)):
            await begun.wait()
        claimed = await store_of(engine).claim(turn, "next")
        assert claimed is not None
        running = RunningTurn(store_of(engine), claimed)

        def make_session(session_id):
            session = agent(answering("unreached"), look, hang)(session_id)

            def stop(event, data):
                running.stop(StopRequest(graceful=is_graceful, reason=None))

            session.coordinator.hooks.register("provider:request", stop)
            return session

        with anyio.fail_after(60):
            assert await running.run(make_session)
        assert (await engine.status(turn)).state == "stopped"
        contents = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert contents[:2] == ["two shelves", "two shelves"]
    assert "whether it had an effect is not known" in contents[2]


async def test_a_worker_that_was_taken_for_dead_writes_nothing_and_goes_on_with_other_turns(tmp_path):
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(given):
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def make_session(session_id):
        model = answering([("hang", {})]) if session_id == "s" else answering("Hello.")
        return agent(model, tool("hang", hang))(session_id)

    async with open_engine("local", tmp_path, lease=60.0) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        with anyio.fail_after(60):
            await begun.wait()
            await store_of(engine).register("another")
            await store_of(engine)._do(lambda run: move(run, turn, "running", 1, attempt=2, worker="another"))
            await ended.wait()
            assert await engine.result(await engine.start("other", "hi")) == "Hello."
        status = await engine.status(turn)
        assert (status.state, status.attempt, status.worker) == ("running", 2, "another")
        assert await engine.messages("s") == []


def run_python(code: str) -> str:
    done = run_program([sys.executable, "-c", code], timeout=60)
    return done.stdout + done.stderr


def test_the_package_imports_no_engine():
    found = run_python(
        "import sys, amplifier.durable; print([m for m in ('dbos', 'sqlalchemy', 'psycopg', 'temporalio') if m in sys.modules])"
    )
    assert found == "[]\n"


@pytest.mark.parametrize(("extra", "package"), [("dbos", "dbos"), ("temporal", "temporalio")])
def test_an_engine_without_its_extra_says_what_to_install(extra, package):
    found = run_python(f"import sys; sys.modules['{package}'] = None; import amplifier.durable.{extra}")
    assert f"amplifier.durable.{extra} needs an optional part" in found
    assert f"pip install 'amplifier[{extra}]'" in found


async def test_a_turn_that_dbos_gives_a_second_time_goes_on_once(tmp_path):
    """The second workflow ends at once; when the worker of the first one dies, the turn gets a new one."""
    hang, begun = hanging(repeatable=True)
    async with open_engine("dbos", tmp_path) as engine:
        turn = await engine.start("s", "go")
        async with working(engine, agent(answering([("hang", {})]), hang)):
            await begun.wait()
            name = str((await engine.status(turn)).worker)
            # As if it had been taken for dead.
            await anyio.to_thread.run_sync(DBOS._recover_pending_workflows, [name])
            assert module._dispatch is not None
            await anyio.to_thread.run_sync(module._dispatch, turn)  # it would not return if it ran the turn
            await eventually(partial(anyio.to_thread.run_sync, all_workflows_ended))
            status = await engine.status(turn)
            assert (status.state, status.attempt) == ("running", 1)
        async with working(engine, agent(answering("Done."), tool("hang", lambda given: "again", repeatable=True))):
            assert await engine.result(turn) == "Done."


def all_workflows_ended() -> bool:
    return not DBOS.list_workflows(status=["PENDING", "ENQUEUED"])


async def test_a_turn_whose_end_is_too_large_to_be_stored_fails_and_the_worker_goes_on(tmp_path):
    """SQLite is given a small limit of its own; the usual one is a thousand million bytes."""
    answer = "long " * 2000

    def make_session(session_id):
        return agent(answering(answer if session_id == "s" else "Hello."))(session_id)

    async with open_engine("local", tmp_path) as engine, working(engine, make_session):
        transactions = store_of(engine)._do
        assert await engine.result(await engine.start("s", "go")) == answer

        def limit_size(run):
            transactions._database._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 15_000)  # type: ignore[attr-defined]

        await transactions(limit_size)
        with pytest.raises(
            TurnFailedError, match=r"the turn ended \(completed\), and that cannot be stored: .* too big"
        ):
            await engine.result(await engine.start("s", "and again"))
        assert await engine.result(await engine.start("other", "hi")) == "Hello."
        assert len(await engine.messages("s")) == 2


@pytest.mark.slow
@MAY_LEAVE
async def test_a_temporal_server_that_is_not_there_is_reported():
    with (
        anyio.fail_after(60),
        pytest.raises(EngineUnavailableError, match=r"127\.0\.0\.1:9 .* does not answer") as caught,
    ):
        async with open_temporal_engine("127.0.0.1:9"):
            pass
    assert caught.value.engine == "127.0.0.1:9 (namespace 'default')"


@pytest.mark.slow
@MAY_LEAVE
@pytest.mark.parametrize("kind", ["temporal"])
async def test_a_temporal_server_without_the_namespace_is_reported(kind, temporal_server):
    with anyio.fail_after(60), pytest.raises(EngineUnavailableError, match="nowhere"):
        async with open_temporal_engine(temporal_server.address, namespace="nowhere"):
            pass


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_away_for_long", [False, True])
@pytest.mark.parametrize("kind", ["postgres", pytest.param("temporal", marks=MAY_LEAVE)])
async def test_a_server_that_crashes_in_the_middle_of_turns_loses_nothing(kind, tmp_path, is_away_for_long):
    """It comes back at once, or after the worker has given up; then the next worker goes on."""
    with postgres() if kind == "postgres" else temporal() as server:
        patience = 3.0 if is_away_for_long else 60.0
        opened = (
            open_dbos_engine(server.url, poll=0.02, lease=1.0, patience=patience)
            if kind == "postgres"
            else open_temporal_engine(server.address, poll=0.05, lease=5.0, patience=patience)
        )
        async with opened as engine:
            turns = {f"s{number}": await engine.start(f"s{number}", "go") for number in range(4)}
            gave_up = anyio.Event()

            async def work():
                try:
                    await engine.work(effect_agent(tmp_path))
                except EngineUnavailableError:
                    gave_up.set()

            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await until(engine, turns["s0"], lambda status: status.attempt)
                await anyio.to_thread.run_sync(server.stop)
                if is_away_for_long:
                    with anyio.fail_after(120):
                        await gave_up.wait()
                await anyio.to_thread.run_sync(server.start)
                if is_away_for_long:
                    group.start_soon(work)
                with anyio.fail_after(200):
                    for session, turn in turns.items():
                        await until_answered(engine, turn)
                        assert transcript_problems(await engine.messages(session), is_whole=True) == []
                group.cancel_scope.cancel()


async def until_answered(engine, turn):
    """Ask again: a server that has just been started may refuse a call."""
    while True:
        try:
            assert await engine.result(turn) == "All done."
        except EngineUnavailableError:
            continue
        return
