"""What durable engines cost: ``python -m benchmarks.durable [local dbos postgres temporal]``, on both backends.

Per engine: milliseconds per step (one model call or tool call that does nothing) in a turn of one worker, seconds from the death of a
worker until another one has its turn, and turns per second with 1, 2 and 4 worker processes. The tables of
docs/how-to/run-turns-past-one-machine.md were made with it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier import ChatResponse, TextBlock, ToolCall
from tests._support.engine_servers import postgres, temporal
from tests.durable.agents import agent, answering, open_engine, tool, until, working
from tests.durable.worker_processes import worker_processes

STEPS = 60
TURNS = 40
LEASE = 5.0
ENGINES = ("local", "dbos", "postgres", "temporal")


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[str]:
    """Where an engine keeps its turns; a server runs until the block is left."""
    with ExitStack() as stack:
        if kind == "postgres":
            yield stack.enter_context(postgres()).url
        elif kind == "temporal":
            yield f"{stack.enter_context(temporal()).address}/{folder.name}"
        else:
            yield str(folder)


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


async def recovery(kind: str, place: str, backend: str, folder: Path) -> float:
    """Seconds from the death of a worker that waits for an answer until the other one has its turn."""
    with worker_processes(kind, backend, place, folder, "asks") as workers:
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
        cells = [f"{await cost_per_step(kind, place):.1f}", f"{await recovery(kind, place, backend, folder):.1f}"]
        for processes in (1, 2, 4):
            cells.append(f"{await turns_per_second(kind, place, backend, folder, processes):.1f}")
    return f"| {kind} | {backend} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    print("| engine | backend | ms per step | recovery, s | turns/s, 1 worker | 2 workers | 4 workers |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for kind in sys.argv[1:] or ENGINES:
        for backend in ("asyncio", "trio"):
            print(anyio.run(measure, kind, backend, backend=backend), flush=True)


if __name__ == "__main__":
    main()
