"""Queued turns against workers: ``python -m benchmarks.turns_at_scale [--turns 10000] [--seconds 600] [--finished 1000]``.

A turn has two model calls and one tool call that do nothing. Per 1, 2, 4 and 8 worker processes on Postgres, each with an empty database:
the delay from the start of a turn until a worker begins it, with 4 turns per second; then turns per second, with all turns queued as quickly
as possible. A line ends when all of them have ended, or after so many seconds. Then what one turn costs the database (statements, commits,
bytes of its log), and how that grows with finished turns in the tables.
"""

from __future__ import annotations

import argparse
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


async def throughput(
    kind: str, place: str, folder: Path, processes: int, turns: int, seconds: float
) -> str:
    """One line of the table."""
    with worker_processes(
        kind, "asyncio", place, folder, "quick", lease=LEASE, poll=POLL
    ) as workers:
        async with open_engine(kind, place, lease=LEASE, poll=POLL, patience=60.0) as engine:
            for _ in range(processes):
                await anyio.to_thread.run_sync(workers.start)
            for turn in [
                await engine.start(f"first-{processes}-{number}", "go")
                for number in range(4 * processes)
            ]:
                await engine.result(turn)
            light = []
            for number in range(LIGHT):
                light.append(await engine.start(f"light-{processes}-{number}", "go"))
                await anyio.sleep(0.25)
            for turn in light:
                await engine.result(turn)
            found = [await engine.status(turn) for turn in light]
            delays = sorted(
                float((folder / f"{each.session_id}.begun").read_text()) - each.started
                for each in found
            )
            began, numbers = time.monotonic(), iter(range(turns))

            async def start_turns() -> None:
                for number in numbers:
                    await engine.start(f"w{processes}-{number}", "go")

            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(start_turns)
                while True:
                    if not (await engine._do(lambda: engine._turns.counts(only_open=True))).states:
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
            quiet = [
                (now - then) / (began - idle_since) for now, then in zip(before, idle, strict=True)
            ]
            for turn in [
                await engine.start(f"cost-{time.time()}-{number}", "go") for number in range(turns)
            ]:
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


async def add_finished(place: str, folder: Path, turns: int) -> None:
    """Run turns, so that the tables have some that have ended."""
    async with (
        open_engine("postgres", place, lease=LEASE, poll=POLL) as engine,
        working(engine, quick_agent(folder), seconds=None, concurrency=50),
    ):
        for turn in [await engine.start(f"old-{number}", "go") for number in range(turns)]:
            await engine.result(turn)


async def measure(
    kinds: list[str], workers: list[int], turns: int, seconds: float, finished: int
) -> None:
    """Print the tables."""
    print(
        "| engine | workers | turns | turns/s | p50 of the delay, s | p99 |\n|---|---|---|---|---|---|",
        flush=True,
    )
    costs: list[str] = []
    for kind in kinds:
        with (
            tempfile.TemporaryDirectory(prefix="amplifier-scale-") as name,
            place_of(kind, Path(name)) as place,
        ):
            for processes in workers:
                empty = await anyio.to_thread.run_sync(
                    empty_place, kind, place, f"scale{processes}"
                )
                print(
                    await throughput(kind, empty, Path(name), processes, turns, seconds), flush=True
                )
            if kind == "postgres":
                few = max(20, min(turns, 200))
                costs.append(f"| {few} | {await database_cost(place, Path(name), few)} |")
                await add_finished(place, Path(name), finished)
                costs.append(f"| {finished} | {await database_cost(place, Path(name), few)} |")
    if costs:
        print(
            "\n| finished turns | statements per turn | commits | KB of log | ms per turn | ms of list() | ms of counts() |"
        )
        print("\n".join(["|---|---|---|---|---|---|---|", *costs]))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["postgres"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="at most so long for the turns of one line"
    )
    parser.add_argument("--finished", type=int, default=1000)
    given = parser.parse_args()
    anyio.run(measure, given.kinds, given.workers, given.turns, given.seconds, given.finished)


if __name__ == "__main__":
    main()
