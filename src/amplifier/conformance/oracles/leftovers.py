"""What a module leaves behind once it is closed: tasks, threads, processes, temporary files; and files that every call leaves open."""

from __future__ import annotations

import gc
import time

import anyio
import anyio.lowlevel

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.process import PATIENCE, Resources, open_files
from amplifier.conformance.target.use import Operation

_SETTLING_STEPS = 5
_PAUSE = 0.02
_KERNEL_TASKS = "amplifier.kernel."
"""Prefix of the names of the kernel's own tasks, which end a moment later."""


def task_ids() -> set[int]:
    """The ids of all running tasks."""
    return {task.id for task in anyio.get_running_tasks()}


async def new_tasks(before: set[int]) -> list[str]:
    """The tasks that were not running before and do not end within a few steps of the loop."""
    left: list[str] = []
    for _ in range(_SETTLING_STEPS):
        left = [task.name or "?" for task in anyio.get_running_tasks() if task.id not in before]
        left = [f"the task {name!r}" for name in left if not name.startswith(_KERNEL_TASKS)]
        if not left:
            break
        await anyio.lowlevel.checkpoint()
    return left


class Leftovers:
    """A snapshot of tasks, threads and processes to compare with later.

    Work that was handed to a thread pool and abandoned ends by itself, so open files do not count: a pool's thread may
    hold them.
    """

    def __init__(self) -> None:
        self._before = Resources()
        self._tasks = task_ids()

    async def found(self) -> list[str]:
        """What exists now and did not then, after it had the time to end."""
        return [*await new_tasks(self._tasks), *self._threads_and_processes()]

    def _threads_and_processes(self) -> list[str]:
        counted = ("the thread", "the process")
        if not any(each.startswith(counted) for each in self._before.leaks()):
            return []
        return [each for each in self._before.leaks_after_patience() if each.startswith(counted)]


async def temporary_files_left(mounted: MountedModule) -> list[str]:
    """The names of temporary files of a closed module that still exist after a moment."""
    give_up = time.monotonic() + PATIENCE
    while left := sorted(path.name for path in mounted.temporary.iterdir()):
        if time.monotonic() >= give_up:
            break
        await anyio.lowlevel.checkpoint()
        time.sleep(_PAUSE)  # noqa: ASYNC251 — for threads and processes, in real time
    return left


CALLS = 5
"""How often an operation that has left a file open is repeated."""
_PAUSE = 0.02


async def find_growing_file(mounted: MountedModule, operation: Operation) -> str | None:
    """Run an operation; if it leaves a file open, run it again and return what each further call leaves open.

    Only the number of descriptors of one and the same file counts: a pool of connections grows and shrinks, and processes
    have pipes. A tool whose results differ may have opened the file on request, and returned a handle to close it.
    """
    before = open_files()
    outcome = await mounted.call(operation.run, mounted)
    if operation.is_last or not open_files() - before:
        return None
    start = open_files()
    results = {repr(outcome.value)}
    for _ in range(CALLS):
        results.add(repr((await mounted.call(operation.run, mounted)).value))
    if mounted.loaded.module_type == "tool" and len(results) > 1:
        return None
    gc.collect()
    give_up = time.monotonic() + PATIENCE
    while growing := [(path, count) for path, count in (open_files() - start).items() if count >= CALLS]:
        if time.monotonic() >= give_up:
            path, count = growing[0]
            return f"{count} descriptors of {mounted.without_session(path)!r}"
        await anyio.lowlevel.checkpoint()
        time.sleep(_PAUSE)  # noqa: ASYNC251 — threads close files in real time, whatever the loop's clock is
    return None
