"""What a module leaves behind once it is closed: tasks, threads, processes, temporary files."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import MountedModule

from .snapshot import PATIENCE, Resources

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
