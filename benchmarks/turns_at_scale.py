"""Queued turns against workers: ``python -m benchmarks.turns_at_scale [--turns 10000] [--seconds 600] [--finished 100000] [postgres temporal]``.

A turn has two model calls and one tool call that do nothing. Per engine and 1, 2, 4 and 8 worker processes, each with an empty database: the
delay from the start of a turn until a worker begins it, with 4 turns per second; then turns per second, with all turns queued as quickly as
possible. A line ends when all of them have ended, or after so many seconds. For Postgres also what one turn costs the database
(statements, commits, bytes of its log), and how that grows with finished turns in the tables. ``simulate`` estimates from these
figures what 1,000 workers and ten million turns a day need.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread
import sqlalchemy as sa

from benchmarks.durable import place_of
from tests.durable.agents import open_engine, quick_agent, working
from tests.durable.worker_processes import worker_processes

LEASE = 10.0
POLL = 0.2


LIGHT = 40
"""Turns of which the delay is measured, one every quarter of a second."""


def empty_place(kind: str, place: str, name: str) -> str:
    """A place on the same server, or in the same folder, without turns."""
    if kind == "temporal":
        return f"{place}-{name}"
    if kind != "postgres":
        folder = Path(place, name)
        folder.mkdir()
        return str(folder)
    url = sa.make_url(place).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(drivername="postgresql", database=name).render_as_string()


async def throughput(kind: str, place: str, folder: Path, processes: int, turns: int, seconds: float) -> str:
    """One line of the table."""
    with worker_processes(kind, "asyncio", place, folder, "quick", lease=LEASE, poll=POLL) as workers:
        async with open_engine(kind, place, lease=LEASE, poll=POLL, patience=60.0) as engine:
            for _ in range(processes):
                await anyio.to_thread.run_sync(workers.start)
            for turn in [await engine.start(f"first-{processes}-{number}", "go") for number in range(4 * processes)]:
                await engine.result(turn)
            light = []
            for number in range(LIGHT):
                light.append(await engine.start(f"light-{processes}-{number}", "go"))
                await anyio.sleep(0.25)
            for turn in light:
                await engine.result(turn)
            found = [await engine.status(turn) for turn in light]
            delays = sorted(float((folder / f"{each.session_id}.begun").read_text()) - each.started for each in found)
            began, numbers = time.monotonic(), iter(range(turns))

            async def start_turns() -> None:
                for number in numbers:
                    await engine.start(f"w{processes}-{number}", "go")

            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(start_turns)
                while True:
                    if not (await engine._turns.counts(only_open=True)).states:  # cheap, unlike counts()
                        break
                    await anyio.sleep(0.5)
            took = time.monotonic() - began
            ended = len(await engine.list(state="completed", limit=10**9)) - LIGHT - 4 * processes
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    return f"| {kind} | {processes} | {ended} of {turns} | {ended / took:.1f} | {p50:.2f} | {p99:.2f} |"


async def database_cost(place: str, folder: Path, turns: int) -> str:
    """What one turn costs the database, with a worker in this process; what the worker does without turns is taken off."""
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    url = sa.make_url(place).set(drivername="postgresql+psycopg")
    watching = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    def figures() -> tuple[int, int, int]:
        with watching.connect() as connection:
            connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
            asked = "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database WHERE datname = current_database()"
            commits, log = connection.execute(sa.text(asked)).one()
        return statements, int(commits), int(log)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        async with (
            open_engine("postgres", place, lease=LEASE, poll=POLL) as engine,
            working(engine, quick_agent(folder), seconds=None),
        ):
            await engine.result(await engine.start("first", "go"))
            await anyio.sleep(1)
            idle_since, idle = time.monotonic(), figures()
            await anyio.sleep(5)
            began, before = time.monotonic(), figures()
            quiet = [(now - then) / (began - idle_since) for now, then in zip(before, idle, strict=True)]
            for turn in [await engine.start(f"cost-{time.time()}-{number}", "go") for number in range(turns)]:
                await engine.result(turn)
            seconds = time.monotonic() - began
            await anyio.sleep(1)
            used = [
                (now - then - each * (seconds + 1)) / turns
                for now, then, each in zip(figures(), before, quiet, strict=True)
            ]
            listing = time.monotonic()
            await engine.list(state="queued")
            counting = time.monotonic()
            await engine.counts()
            ended = time.monotonic()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
        watching.dispose()
    times = f"{seconds / turns * 1000:.0f} | {(counting - listing) * 1000:.1f} | {(ended - counting) * 1000:.1f}"
    return f"{used[0]:.1f} | {used[1]:.1f} | {used[2] / 1024:.1f} | {times}"


def add_finished(place: str, turns: int) -> None:
    """Put turns into the tables that have ended."""
    engine = sa.create_engine(sa.make_url(place).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO amplifier_turns (turn_id, session_id, number, prompt, state, is_open, attempt, deaths, queued_at, started_at, "
                "ended_at, answer) SELECT 'old-' || n, 'session-' || n, 1, 'go', 'completed', 0, 1, 0, n, n, n, 'Two shelves.' "
                "FROM generate_series(1, :turns) AS n"
            ),
            {"turns": turns},
        )
        connection.execute(
            sa.text(
                "INSERT INTO amplifier_events (turn_id, last_position, attempt, events) "
                "SELECT 'old-' || n, 20, 1, repeat('x', 4000) FROM generate_series(1, :turns) AS n"
            ),
            {"turns": turns},
        )
    engine.dispose()


def simulate(
    *,
    workers: int = 1000,
    turns_a_day: float = 10e6,
    commits: float,
    poll: float = 1.0,
    lease: float = 10.0,
    connections: int = 32,
    commit_ms: float = 4.0,
    read_ms: float = 0.3,
    seconds: float = 20.0,
) -> dict[str, float]:
    """A database as so many servers behind one queue: what it does per second at three times the mean load, and how long a commit waits.

    A commit is as long as a sync of the disk; those that wait share one, so the service time of a full house is divided by how many wait.
    """
    chance = random.Random(1)
    rate = 3 * turns_a_day / 86400 * commits + workers * 4 / lease  # and the beats
    reads = workers / poll * 2
    free = [0.0] * connections
    now, waits = 0.0, []
    while now < seconds:
        now += chance.expovariate(rate + reads)
        begins = max(now, heapq.heappop(free))
        took = commit_ms if chance.random() < rate / (rate + reads) else read_ms
        heapq.heappush(free, begins + took / 1000 * chance.uniform(0.7, 1.6))
        waits.append(begins - now)
    waits.sort()
    return {
        "commits per second": rate,
        "reads per second": reads,
        "busy": (rate * commit_ms + reads * read_ms) / 1000 / connections,
        "p99 of a wait, ms": waits[int(len(waits) * 0.99)] * 1000,
        "mean wait, ms": statistics.fmean(waits) * 1000,
    }


async def measure(kinds: list[str], workers: list[int], turns: int, seconds: float, finished: int) -> None:
    """Print the tables."""
    print("| engine | workers | turns | turns/s | p50 of the delay, s | p99 |\n|---|---|---|---|---|---|", flush=True)
    costs: list[str] = []
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="amplifier-scale-") as name, place_of(kind, Path(name)) as place:
            for processes in workers:
                empty = await anyio.to_thread.run_sync(empty_place, kind, place, f"scale{processes}")
                print(await throughput(kind, empty, Path(name), processes, turns, seconds), flush=True)
            if kind == "postgres":
                few = max(20, min(turns, 200))
                costs.append(f"| {few} | {await database_cost(place, Path(name), few)} |")
                await anyio.to_thread.run_sync(add_finished, place, finished)
                costs.append(f"| {finished} | {await database_cost(place, Path(name), few)} |")
    if costs:
        print(
            "\n| finished turns | statements per turn | commits | KB of log | ms per turn | ms of list() | ms of counts() |"
        )
        print("\n".join(["|---|---|---|---|---|---|---|", *costs]))
        per_turn = float(costs[-1].split("|")[3])
        for databases in (1, 2, 4):
            found = simulate(commits=per_turn, workers=1000 // databases, turns_a_day=10e6 / databases)
            print(f"\n{databases} database(s): " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["postgres", "temporal"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="at most so long for the turns of one line")
    parser.add_argument("--finished", type=int, default=100_000)
    given = parser.parse_args()
    anyio.run(measure, given.kinds, given.workers, given.turns, given.seconds, given.finished)


if __name__ == "__main__":
    main()
