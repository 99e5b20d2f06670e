"""What durable turns cost beside bare DBOS: ``python -m benchmarks.durable [sqlite postgres]``, on both backends.

Per database: milliseconds per step (a model call or tool call that does nothing) and those of a bare step of DBOS in the same run; the
share of a processor that a worker without work takes, and that of bare DBOS with the same queue; seconds from the start of a turn until a
worker has it; with Postgres, seconds from the death of a worker until another one has its turn; and turns per second with 1 and 2 workers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier import ChatResponse, TextBlock, ToolCall
from tests._support.engine_servers import postgres
from tests._support.tree import ROOT
from tests.durable.agents import agent, answering, open_engine, tool, until, working
from tests.durable.worker_processes import worker_processes

STEPS = 60
TURNS = 20
IDLE_SECONDS = 10.0
LEASE = 5.0
ENGINES = ("sqlite", "postgres")

BARE = """
import resource, sys, time
from dbos import DBOS

url, steps, seconds, pickup = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

@DBOS.workflow(name="bare")
def bare():
    began = time.perf_counter()
    for number in range(steps):
        DBOS.run_step({"name": f"step {number}"}, lambda: {"seen": True})
    return (time.perf_counter() - began) / steps * 1000

def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime

DBOS(config={"name": "bare-dbos", "system_database_url": url, "log_level": "ERROR", "use_listen_notify": False})
DBOS.listen_queues(["bare"])
DBOS.launch()
DBOS.register_queue("bare", worker_concurrency=10, polling_interval_sec=pickup)
per_step = DBOS.start_workflow(bare).get_result()
time.sleep(2)
before, began = used(), time.monotonic()
time.sleep(seconds)
print(per_step, (used() - before) / (time.monotonic() - began) * 100)
DBOS.destroy()
"""

IDLE = """
import resource, sys, time
import anyio
from tests.durable.agents import agent, answering, open_engine, working

async def main(kind, place, seconds, pickup):
    async with open_engine(kind, place, poll=0.2, pickup=float(pickup), lease=10.0) as engine:
        async with working(engine, agent(answering("unused"))):
            await anyio.sleep(2)
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
            await anyio.sleep(float(seconds))
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(used / (time.monotonic() - began) * 100)

anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
"""


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[str]:
    """Where an engine keeps its turns; a server runs until the block is left."""
    with ExitStack() as stack:
        yield stack.enter_context(postgres()).url if kind == "postgres" else str(folder)


def _run(code: str, *words: object) -> list[float]:
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return [float(word) for word in done.stdout.split()]


def looking(request):
    done = sum(message.role == "assistant" for message in request.messages)
    if done == STEPS // 2:
        return ChatResponse(content=[TextBlock(text="Done.")])
    return ChatResponse(content=[], tool_calls=[ToolCall(id=f"look-{done}", name="look", arguments={})])


def looking_agent():
    return agent(answering(*[looking] * (STEPS // 2 + 1)), tool("look", lambda given: "seen", repeatable=True))


async def cost_per_step(kind: str, place: str) -> float:
    """Milliseconds that recording adds to a step."""
    async with looking_agent()("plain") as session:
        began = time.perf_counter()
        await session.execute("go")
        plain = time.perf_counter() - began
    async with (
        open_engine(kind, place, lease=LEASE, patience=60.0) as engine,
        working(engine, looking_agent(), seconds=None),
    ):
        turn = await engine.start("steps", "go")
        await until(engine, turn, lambda status: status.attempt)
        began = time.perf_counter()
        await engine.result(turn)
        return (time.perf_counter() - began - plain) / STEPS * 1000


async def pickup(kind: str, place: str, seconds: float) -> float:
    """Seconds from the start of a turn until a worker has it, with this option; the longest of five."""
    async with (
        open_engine(kind, place, lease=LEASE, pickup=seconds) as engine,
        working(engine, agent(answering(*["Done."] * 9)), seconds=None),
    ):
        longest = 0.0
        for number in range(5):
            began = time.perf_counter()
            turn = await engine.start(f"pickup-{seconds}-{number}", "go")
            await until(engine, turn, lambda status: status.attempt)
            longest = max(longest, time.perf_counter() - began)
        return longest


async def recovery(kind: str, place: str, backend: str, folder: Path) -> float:
    """Seconds from the death of a worker that waits for an answer until the other one has its turn."""
    with worker_processes(kind, backend, place, folder, "asks", lease=LEASE) as workers:
        async with open_engine(kind, place, lease=LEASE, patience=60.0) as engine:
            turn = await engine.start("dies", "go")
            for _ in range(2):
                await anyio.to_thread.run_sync(workers.start)
            status = await until(engine, turn, lambda status: status.questions)
            [victim] = [pid for pid in workers.living if f"-{pid}-" in str(status.worker)]
            workers.kill(victim)
            began = time.perf_counter()
            await until(engine, turn, lambda now: now.attempt > status.attempt)
            return time.perf_counter() - began


async def turns_per_second(kind: str, place: str, backend: str, folder: Path, processes: int) -> float:
    """With worker processes that have run a turn each; a turn has 5 model calls and 16 tool calls that write to the disk."""
    with worker_processes(kind, backend, place, folder) as workers:
        async with open_engine(kind, place, lease=LEASE, patience=60.0) as engine:
            for _ in range(processes):
                await anyio.to_thread.run_sync(workers.start)
            for number in range(2 * processes):
                await engine.result(await engine.start(f"first-{processes}-{number}", "go"))
            began = time.perf_counter()
            turns = [await engine.start(f"s-{processes}-{number}", "go") for number in range(TURNS)]
            for turn in turns:
                await engine.result(turn)
            return TURNS / (time.perf_counter() - began)


async def measure(kind: str, backend: str) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory(prefix="amplifier-durable-") as name, place_of(kind, Path(name)) as place:
        folder = Path(name)
        url = f"sqlite:///{name}/bare.sqlite" if kind == "sqlite" else place
        bare = await anyio.to_thread.run_sync(_run, BARE, url, STEPS, IDLE_SECONDS, 1.0)
        idle = await anyio.to_thread.run_sync(_run, IDLE, backend, kind, place, IDLE_SECONDS, 1.0)
        cells = [f"{await cost_per_step(kind, place):.1f}", f"{bare[0]:.1f}", f"{idle[0]:.1f}", f"{bare[1]:.1f}"]
        cells += [f"{await pickup(kind, place, seconds):.2f}" for seconds in (1.0, 0.2)]
        cells.append(f"{await recovery(kind, place, backend, folder):.1f}" if kind == "postgres" else "—")
        for processes in (1, 2) if kind == "postgres" else (1,):
            cells.append(f"{await turns_per_second(kind, place, backend, folder, processes):.1f}")
    return f"| {kind} | {backend} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    print(
        "| database | backend | ms per step | bare DBOS | idle, % of a core | bare DBOS | pickup, s | with pickup=0.2 "
        "| recovery, s | turns/s, 1 worker | 2 workers |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for kind in sys.argv[1:] or ENGINES:
        for backend in ("asyncio", "trio"):
            print(anyio.run(measure, kind, backend, backend=backend), flush=True)


if __name__ == "__main__":
    main()
