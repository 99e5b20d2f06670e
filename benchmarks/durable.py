"""Measure durable turns beside bare DBOS: ``python -m benchmarks.durable [sqlite postgres]``, on both backends.

Per database and backend, in one run:

- processor milliseconds that recording adds to a step (a model call, a tool call, or the record that a call begins),
  those of a step of bare DBOS in the same process, and their ratio, without and with records of beginnings
- the share of a core that a worker without work takes, and that of bare DBOS with the same queue
- seconds from the start of a turn until a worker has it, by default and with ``pickup=0.2``
- on Postgres, seconds until another worker has the turn of one that was killed, and of one that was suspended
- turns per second with one and with two workers
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from dbos import DBOS

from amplifier import AmplifierSession, ChatRequest, ChatResponse, TextBlock, ToolCall
from tests._support.engine_servers import postgres
from tests._support.tree import ROOT
from tests.durable.agents import agent, answering, open_engine, tool, until, working
from tests.durable.worker_processes import worker_processes
from tests.modules.durable_agent import ScriptedModel

SHORT, LONG = 20, 80
"""Steps of two turns. What a turn costs beside its steps is not in their difference."""
ROUNDS = 3
TURNS = 12
IDLE_SECONDS = 5.0
LEASE = 2.0
ENGINES = ("sqlite", "postgres")

BARE = """
import resource, sys, time
from dbos import DBOS

url, seconds, pickup = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime

DBOS(config={"name": "bare-dbos", "system_database_url": url, "log_level": "ERROR", "use_listen_notify": False})
DBOS.listen_queues(["bare"])
DBOS.launch()
DBOS.register_queue("bare", worker_concurrency=10, polling_interval_sec=pickup)
time.sleep(2)
before, began = used(), time.monotonic()
time.sleep(seconds)
print((used() - before) / (time.monotonic() - began) * 100)
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
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return [float(word) for word in done.stdout.split()]


@DBOS.workflow(name="bare")
def bare(steps: int) -> None:
    """Make steps that do nothing."""
    for number in range(steps):
        DBOS.run_step({"name": f"step {number}"}, lambda: {"seen": True})


def run_bare(steps: int) -> None:
    """Run a workflow of `bare` steps."""
    DBOS.start_workflow(bare, steps).get_result()


class LookingModel(ScriptedModel):
    """Looks in each answer but the last one, so that a turn has a number of steps. Keeps no requests."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._answers = steps // 2

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        done = sum(message.role == "assistant" for message in request.messages)
        if done == self._answers:
            return ChatResponse(content=[TextBlock(text="Done.")])
        return ChatResponse(
            content=[], tool_calls=[ToolCall(id=f"look-{done}", name="look", arguments={})]
        )


def looking_session(session_id: str) -> AmplifierSession:
    """Make a session whose id names its number of steps, and whether its tool may be repeated."""
    steps, may = session_id.split("-")[:2]
    look = tool("look", lambda given: "seen", repeatable=may == "repeatable")
    return agent(LookingModel(int(steps)), look)(session_id)


async def cpu_of(run: Callable[[], Awaitable[object]]) -> float:
    """Return the processor time that this process takes meanwhile."""
    began = time.process_time()
    await run()
    return time.process_time() - began


async def cost_per_step(kind: str, place: str, may: str) -> tuple[float, float]:
    """Return the processor milliseconds that recording adds to a step, and those of a bare step."""
    used: dict[tuple[str, int], list[float]] = defaultdict(list)
    async with (
        open_engine(kind, place, poll=0.2, pickup=0.5, patience=60.0) as engine,
        # Few looks, because a client is another process.
        open_engine(kind, place, poll=2.0) as client,
        working(engine, looking_session, seconds=None),
    ):
        for number in range(ROUNDS):
            for steps in (SHORT, LONG):
                used["bare", steps].append(
                    await cpu_of(partial(anyio.to_thread.run_sync, run_bare, steps))
                )
                async with looking_session(f"{steps}-{may}") as session:
                    used["plain", steps].append(await cpu_of(partial(session.execute, "go")))
                turn = await engine.start(f"{steps}-{may}-{number}", "go")
                used["ours", steps].append(await cpu_of(partial(client.result, turn)))

    def per_step(what: str) -> float:
        return (min(used[what, LONG]) - min(used[what, SHORT])) / (LONG - SHORT) * 1000

    records = 1.0 if may == "repeatable" else 1.5
    return (per_step("ours") - per_step("plain")) / records, per_step("bare")


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


async def takeover(kind: str, place: str, backend: str, folder: Path, how: str) -> float:
    """Return the seconds from the end or pause of a worker until the other one has its turn, which waits for an answer."""
    with worker_processes(kind, backend, place, folder, "asks", lease=LEASE) as workers:
        async with open_engine(kind, place, lease=LEASE, patience=60.0) as engine:
            turn = await engine.start(how, "go")
            for _ in range(2):
                await anyio.to_thread.run_sync(workers.start)
            status = await until(engine, turn, lambda status: status.questions)
            [victim] = [pid for pid in workers.living if f"-{pid}-" in str(status.worker)]
            began = time.perf_counter()
            getattr(workers, how)(victim)
            await until(engine, turn, lambda now: now.attempt > status.attempt)
            return time.perf_counter() - began


async def turns_per_second(
    kind: str, place: str, backend: str, folder: Path, processes: int
) -> float:
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
    with (
        tempfile.TemporaryDirectory(prefix="amplifier-durable-") as name,
        place_of(kind, Path(name)) as place,
    ):
        folder = Path(name)
        url = f"sqlite:///{name}/bare.sqlite" if kind == "sqlite" else place
        bare_idle = await anyio.to_thread.run_sync(_run, BARE, url, IDLE_SECONDS, 1.0)
        idle = await anyio.to_thread.run_sync(_run, IDLE, backend, kind, place, IDLE_SECONDS, 1.0)
        ours, one = await cost_per_step(kind, place, "repeatable")
        ours_with_begin, other = await cost_per_step(kind, place, "once")
        cells = [f"{ours:.1f}", f"{one:.1f}", f"{ours / one:.1f}", f"{ours_with_begin / other:.1f}"]
        cells += [f"{idle[0]:.1f}", f"{bare_idle[0]:.1f}"]
        cells += [f"{await pickup(kind, place, seconds):.2f}" for seconds in (1.0, 0.2)]
        for how in ("kill", "suspend"):
            cells.append(
                f"{await takeover(kind, place, backend, folder, how):.1f}"
                if kind == "postgres"
                else "—"
            )
        for processes in (1, 2) if kind == "postgres" else (1,):
            cells.append(f"{await turns_per_second(kind, place, backend, folder, processes):.1f}")
    return f"| {kind} | {backend} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    columns = "| database | backend | CPU ms per step | bare DBOS | ratio | ratio with begin records | idle, % of a core | bare DBOS "
    columns += f"| pickup, s | with pickup=0.2 | takeover of a killed worker, s (lease {LEASE:g}) | of a suspended one "
    columns += "| turns/s, 1 worker | 2 workers |"
    print(columns, flush=True)
    print("|" + "---|" * (columns.count("|") - 1), flush=True)
    for kind in sys.argv[1:] or ENGINES:
        for backend in ("asyncio", "trio"):
            print(anyio.run(measure, kind, backend, backend=backend), flush=True)


if __name__ == "__main__":
    main()
