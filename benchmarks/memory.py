"""How much a live session holds, and what is left of it: a program of its own, so that nothing else is counted.

    python -m benchmarks.memory ours by-hand 10000

Prints JSON: kibibytes of resident memory per live session, and how many of their parts are alive after closing them,
letting go of them, and a run of the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernels import OURS, THEIRS, Kernel


def resident() -> int:
    """Bytes of this process that are in memory."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


async def by_hand(kernel: Kernel, count: int, watched: list[weakref.ref[Any]]) -> float:
    """Open with `initialize`, look, close with `cleanup`."""
    loader = kernel.loader()
    sessions: list[Any] = []

    async def fill(number: int) -> None:
        for _ in range(number):
            session = kernel.session(loader)
            await session.initialize()
            sessions.append(session)

    async def empty() -> None:
        while sessions:
            await sessions.pop().cleanup()

    await fill(50)
    await empty()
    gc.collect()
    before = resident()
    await fill(count)
    gc.collect()
    taken = resident() - before
    for session in sessions:
        # Of the published kernel's sessions the module is watched: nothing else of them can be.
        watched.append(
            weakref.ref(session if kernel.is_ours else session.coordinator.get("context"))
        )
    del session
    await empty()
    return taken


async def in_tasks(
    kernel: Kernel, count: int, watched: list[weakref.ref[Any]], *, one_after_another: bool = False
) -> float:
    """Open each with ``async with`` in a task of its own, as a server would; the task is counted, too.

    All at the same moment, which leaves room in memory for what all the openings held at once; or one after another.
    """
    loader = kernel.loader()

    async def live(opened: asyncio.Semaphore, leave: asyncio.Event) -> None:
        async with kernel.session(loader) as session:
            watched.append(
                weakref.ref(session if kernel.is_ours else session.coordinator.get("context"))
            )
            opened.release()
            await leave.wait()

    async def fill(number: int) -> float:
        opened, leave = asyncio.Semaphore(0), asyncio.Event()
        gc.collect()
        before = resident()
        tasks = []
        for _ in range(number):
            tasks.append(asyncio.create_task(live(opened, leave)))
            if one_after_another:
                await opened.acquire()
        if not one_after_another:
            for _ in range(number):
                await opened.acquire()
        gc.collect()
        taken = resident() - before
        leave.set()
        await asyncio.gather(*tasks)
        return taken

    await fill(50)
    watched.clear()
    return await fill(count)


def measured(who: str, how: str, count: int) -> dict[str, float]:
    """Start the program below and read its answer."""
    command = [sys.executable, "-m", "benchmarks.memory", who, how, str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> None:
    who, how, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kernel = {"ours": OURS, "theirs": THEIRS}[who]
    watched: list[weakref.ref[Any]] = []
    ways = {
        "by-hand": by_hand,
        "in-tasks": in_tasks,
        "in-turn": partial(in_tasks, one_after_another=True),
    }
    taken = asyncio.run(ways[how](kernel, count, watched))
    gc.collect()
    alive = sum(reference() is not None for reference in watched)
    print(json.dumps({"kib": taken / count / 1024, "alive": alive, "watched": len(watched)}))


if __name__ == "__main__":
    main()
