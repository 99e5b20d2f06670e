"""What one turn costs its engine, as counts: two model calls and one tool call, begun once and never interrupted."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from temporalio.api.enums.v1 import EventType

from amplifier.durable import _database, dbos
from amplifier.durable._running_turn import RunningTurn
from tests.durable.agents import MAY_LEAVE, open_engine, quick_agent, working

RECORDS = 4  # the beginning of the tool call, and three results

TABLES = ["local", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dbos", "postgres"))]


class Counts:
    """Counts the transactions of databases, and their statements, by the method that they are for."""

    def __init__(self, monkeypatch) -> None:
        self.transactions: Counter[str] = Counter()
        self.statements: Counter[str] = Counter()
        self._now = threading.local()
        for module, name in ((_database, "_run_statement"), (dbos._SqlRun, "__call__")):
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))
        for kind in (_database.SqliteDatabase, dbos._SqlDatabase):
            monkeypatch.setattr(kind, "transaction", self._noting(kind.transaction))

    def _counting(self, run):
        def counting(*args, **values):
            self.statements[self._now.what] += 1
            return run(*args, **values)

        return counting

    def _noting(self, transact):
        def transaction(database, work, **options):
            self._now.what = work.__qualname__.removeprefix("TurnStore.").split(".")[0]
            self.transactions[self._now.what] += 1
            return transact(database, work, **options)

        return transaction


@pytest.fixture
def without_watchers(monkeypatch):
    """Events go into the record of the end, not into others now and then."""

    async def flush(running):
        pass

    monkeypatch.setattr(RunningTurn, "flush", flush)


@pytest.mark.usefixtures("without_watchers")
@pytest.mark.parametrize("kind", TABLES)
async def test_transactions_and_statements_of_a_turn(kind, place, tmp_path, monkeypatch):
    database = Counts(monkeypatch)
    async with open_engine(kind, place, lease=60.0) as engine, working(engine, quick_agent(tmp_path)):
        turn = await engine.start("s", "go")
        assert await engine.result(turn) == "Two shelves."
    costs = {
        what: (database.transactions[what], database.statements[what])
        for what in ("start", "queued", "claim", "_record", "add_events", "finish")  # the others are made now and then
        if what in database.transactions
    }
    shown = 0 if kind == "local" else 3  # each result is a step of the workflow of DBOS, too
    assert costs == {
        "start": (1, 1),
        "claim": (1, 2),
        "_record": (RECORDS, RECORDS + 1 + shown),  # the first one has the plan
        "finish": (1, 5),
    }


@pytest.mark.slow
@MAY_LEAVE
@pytest.mark.usefixtures("without_watchers")
@pytest.mark.parametrize("kind", ["temporal"])
async def test_entries_in_the_history_of_a_turn(kind, place, tmp_path):
    async with open_engine(kind, place) as engine, working(engine, quick_agent(tmp_path)):
        turn = await engine.start("s", "go")
        assert await engine.result(turn) == "Two shelves."
        server, queue = engine._turns.server, engine._turns.queue
        handle = server.client.get_workflow_handle(f"{queue}-turn-{turn}")
        history = await server.call(handle.fetch_history)
        events = [event async for event in engine.watch(turn)]
    kinds = Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events)
    steps = Counter({kind: count for kind, count in kinds.items() if not kind.startswith("WORKFLOW_TASK")})
    assert steps == {
        "WORKFLOW_EXECUTION_STARTED": 1,
        "ACTIVITY_TASK_SCHEDULED": 1,
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": 2,  # the claim, and the beginning of the tool call
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED": 2,
        "WORKFLOW_PROPERTIES_MODIFIED": 2,
        "WORKFLOW_EXECUTION_SIGNALED": 3,  # the results
        "ACTIVITY_TASK_STARTED": 1,
        "ACTIVITY_TASK_COMPLETED": 1,
        "WORKFLOW_EXECUTION_COMPLETED": 1,
    }
    assert events[-1].name == "session:end"
