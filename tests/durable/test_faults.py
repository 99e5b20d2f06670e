"""Databases that are not there, go away or are full, and workers that have lost a turn: one clear error each, nothing lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sqlalchemy as sa
from dbos import DBOS

from amplifier.durable import EngineUnavailableError, TurnFailedError, _worker, open_engine
from amplifier.durable._database import Database, DatabaseDown
from amplifier.durable._turns import WAITING
from amplifier.durable._values import StopRequest
from amplifier.errors import SessionStateError
from tests._support.engine_servers import postgres
from tests._support.programs import run_program
from tests._support.tree import ROOT
from tests.durable.agents import agent, answering, effect_agent, hanging, tool, until, working
from tests.durable.agents import open_engine as open_quick_engine
from tests.modules.durable_agent import transcript_problems


async def test_unusable_file_is_reported_at_opening(tmp_path):
    with pytest.raises(
        EngineUnavailableError, match=r"missing/turns.db does not answer .*No such file"
    ) as caught:
        async with open_engine(tmp_path / "missing" / "turns.db"):
            pass
    assert caught.value.engine.endswith("missing/turns.db")


async def test_absent_server_is_reported_without_password():
    with anyio.fail_after(60), pytest.raises(EngineUnavailableError, match="refused") as caught:
        async with open_engine("postgresql://anna:opensesame@127.0.0.1:9/turns"):
            pass
    assert "127.0.0.1:9/turns" in str(caught.value)
    assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mysql://host/database", "postgresql://host", "sqlite://", "temporal://host"]
)
async def test_url_of_another_kind_is_refused(url):
    with pytest.raises(
        ValueError, match=r"a file, sqlite:///path or postgresql://user:password@host/database"
    ):
        async with open_engine(url):
            pass


async def test_engine_from_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("AMPLIFIER_TURNS", raising=False)
    with pytest.raises(ValueError, match="in the variable AMPLIFIER_TURNS"):
        async with open_engine():
            pass
    monkeypatch.setenv("AMPLIFIER_TURNS", f"sqlite:///{tmp_path}/turns.db")
    async with open_engine() as engine:
        await engine.start("s", "go")
    assert (tmp_path / "turns.db").stat().st_mode & 0o777 == 0o600


async def test_process_has_one_worker(tmp_path):
    async with (
        open_quick_engine("sqlite", tmp_path) as engine,
        working(engine, agent(answering("Hello."))),
    ):
        with pytest.raises(
            SessionStateError, match="DBOS already runs in this process, with a worker of amplifier"
        ):
            await engine.work(agent(answering("Hello.")))
        assert await engine.result(await engine.start("s", "hi")) == "Hello."


async def test_worker_failing_to_launch_leaves_no_instance(tmp_path):
    async with open_quick_engine("sqlite", tmp_path) as engine:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DBOS, "launch", lambda: int("lost"))
            with pytest.raises(ValueError, match="lost"):
                await engine.work(agent(answering("Hello.")))
        async with working(engine, agent(answering("Hello."))):
            assert await engine.result(await engine.start("s", "hi")) == "Hello."


WORKER = """
import sys
import anyio
from tests.durable.agents import agent, answering, open_engine

async def main():
    async with open_engine("sqlite", sys.argv[1]) as engine:
        print("a client sees", len(await engine.list()), "turns", flush=True)
        await engine.work(agent(answering("Hello.")))

try:
    anyio.run(main)
except Exception as error:
    print(type(error).__name__, error)
"""


async def test_second_worker_of_file_is_refused(tmp_path):
    async with (
        open_quick_engine("sqlite", tmp_path) as engine,
        working(engine, agent(answering("Hello."))),
    ):
        turn = await engine.start("s", "hi")
        assert await engine.result(turn) == "Hello."
        name = (await engine.status(turn)).worker
        command = [sys.executable, "-c", WORKER, str(tmp_path)]
        done = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
            )
        )
    first, second = done.stdout.splitlines()
    assert first == "a client sees 1 turns"
    assert second.startswith("SessionStateError the file")
    assert f"already has a worker, {name}" in second


DBOS_OF_AN_APPLICATION = """
import sys
import anyio
from dbos import DBOS
from tests.durable.agents import agent, answering, open_engine

DBOS(config={"name": "shop", "system_database_url": f"sqlite:///{sys.argv[1]}/shop.sqlite", "log_level": "ERROR"})
if sys.argv[2] == "launched":
    DBOS.launch()

async def main():
    async with open_engine("sqlite", sys.argv[1]) as engine:
        await engine.work(agent(answering("Hello.")))

try:
    anyio.run(main)
except Exception as error:
    print(type(error).__name__, error)
DBOS.destroy()
"""


@pytest.mark.parametrize("how", ["launched", "made"])
def test_worker_beside_application_dbos_is_refused(tmp_path, how):
    command = [sys.executable, "-c", DBOS_OF_AN_APPLICATION, str(tmp_path), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert (
        "SessionStateError DBOS already runs in this process, for the application itself"
        in done.stdout
    )
    assert "run this worker in a separate process" in done.stdout


async def test_full_disk_ends_worker(tmp_path):
    begun, go_on, failed = anyio.Event(), anyio.Event(), anyio.Event()
    pages = 1_000_000

    async def look(given):
        begun.set()
        await go_on.wait()
        return "two shelves " * 10_000

    def limit_pages(connection, *_):
        # With fewer pages than there are, SQLite takes no more, which it reports as it reports a full disk.
        connection.execute(f"PRAGMA max_page_count = {pages}")

    make_session = agent(answering([("look", {})]), tool("look", look, repeatable=True))
    async with open_quick_engine("sqlite", tmp_path, patience=0.1) as engine:
        sa.event.listen(engine._do.engine, "checkout", limit_pages)
        turn = await engine.start("s", "go")

        async def work():
            with pytest.raises(EngineUnavailableError, match="disk is full"):
                await engine.work(make_session)
            failed.set()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await begun.wait()
                pages = 1
                go_on.set()
                await failed.wait()
        pages = 1_000_000
        async with working(
            engine,
            agent(answering("Two."), tool("look", lambda given: "seen again", repeatable=True)),
        ):
            assert await engine.result(turn) == "Two."
        assert (await engine.messages("s"))[2]["content"] == "seen again"


async def test_start_with_lost_commit_starts_once(tmp_path, monkeypatch):
    run = Database.run
    lost: list[Any] = []

    def run_and_lose(database, work):
        done = run(database, work)
        if not lost:
            lost.append(work)
            raise DatabaseDown("the connection was lost")
        return done

    async with open_quick_engine("sqlite", tmp_path) as engine:
        monkeypatch.setattr(Database, "run", run_and_lose)
        turn = await engine.start("s", "pay", turn_id="order-17")
        assert [found.turn_id for found in await engine.list()] == [turn]
    assert len(lost) == 1


@pytest.mark.parametrize("is_graceful", [False, True])
async def test_stop_during_replay_keeps_all_records(tmp_path, is_graceful):
    hang, begun = hanging()
    look = tool("look", lambda given: "two shelves")
    async with open_quick_engine("sqlite", tmp_path) as engine:
        turn = await engine.start("s", "go")
        async with working(
            engine, agent(answering([("look", {})], [("look", {})], [("hang", {})]), look, hang)
        ):
            await begun.wait()

        def make_session(session_id):
            session = agent(answering("unreached"), look, hang)(session_id)

            def stop(event, data):
                assert _worker._worker is not None
                running, _ = _worker._worker._running[turn]
                running.stop(StopRequest(graceful=is_graceful, reason=None))

            session.coordinator.hooks.register("provider:request", stop)
            return session

        async with working(engine, make_session):
            await until(engine, turn, lambda status: status.state == "stopped")
        contents = [m["content"] for m in await engine.messages("s") if m["role"] == "tool"]
    assert contents[:2] == ["two shelves", "two shelves"]
    assert "whether it had an effect is not known" in contents[2]


async def test_worker_without_its_turn_writes_nothing(tmp_path):
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

    async with open_quick_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        turn = await engine.start("s", "go")
        with anyio.fail_after(60):
            await begun.wait()
            client = engine._turns.client
            await engine._do(lambda: client.resume_workflows([turn], queue_name=WAITING))
            await ended.wait()
            assert await engine.result(await engine.start("other", "hi")) == "Hello."
        assert await engine.messages("s") == []


def run_python(code: str) -> str:
    done = run_program([sys.executable, "-c", code], timeout=60)
    return done.stdout + done.stderr


def test_package_imports_no_engine():
    found = run_python(
        "import sys, amplifier.durable; print([m for m in ('dbos', 'sqlalchemy', 'psycopg') if m in sys.modules])"
    )
    assert found == "[]\n"


@pytest.mark.parametrize("package", ["dbos", "cryptography.fernet"])
def test_engine_without_extra_names_it(package):
    found = run_python(
        f"import sys; sys.modules['{package}'] = None; import anyio; from amplifier.durable import open_engine\n"
        "anyio.run(open_engine('turns.db').__aenter__)"
    )
    assert "amplifier.durable needs an optional part" in found
    assert "pip install 'amplifier[durable]'" in found


async def test_unstorable_turn_end_fails_turn_only(tmp_path):
    """SQLite is given a small limit of its own; the usual one is a thousand million bytes."""
    answer = "long " * 2000
    limit = 1_000_000

    def limit_size(connection, *_):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)

    def make_session(session_id):
        return agent(answering(answer if session_id == "s" else "Hello."))(session_id)

    async with open_quick_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        sa.event.listen(engine._do.engine, "checkout", limit_size)
        assert await engine.result(await engine.start("s", "go")) == answer
        # The row has the conversation and the answer.
        limit = 25_000
        with pytest.raises(
            TurnFailedError,
            match=r"the turn ended \(completed\), and that cannot be stored: .* too big",
        ):
            await engine.result(await engine.start("s", "and again"))
        assert await engine.result(await engine.start("other", "hi")) == "Hello."
        assert len(await engine.messages("s")) == 2


@pytest.mark.long
@pytest.mark.timeout(300)
# Threads in which DBOS waits for the server end some time after it is back.
@pytest.mark.may_leave("thread 'AnyIO worker", "(socket:[")
@pytest.mark.parametrize("is_away_for_long", [False, True])
async def test_crashed_server_loses_nothing(tmp_path, is_away_for_long):
    """It comes back at once, or after the worker has given up; then the next worker goes on."""
    with postgres() as server:
        patience = 3.0 if is_away_for_long else 60.0
        async with open_engine(
            server.url, poll=0.02, pickup=0.02, lease=1.0, patience=patience
        ) as engine:
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
                        assert (
                            transcript_problems(await engine.messages(session), is_whole=True) == []
                        )
                group.cancel_scope.cancel()


async def until_answered(engine, turn):
    """Ask again: a server that has just been started may refuse a call."""
    while True:
        try:
            assert await engine.result(turn) == "All done."
        except EngineUnavailableError:
            continue
        return
