"""What a call that was cancelled leaves behind once the module is closed: tasks, threads, processes, temporary files.

Work that was handed to a pool of threads and given up there ends by itself and is nobody's to end, so a pool's threads do not
count, nor what they hold open. Above stands the sweep of cancellations; below stand the snapshot of resources and the mounted.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel

from .mounted_module import MountedModule
from .resource_snapshot import PATIENCE, Resources

_STEPS = 5
_PAUSE = 0.02
_KERNEL_TASKS = "amplifier.kernel."
"""How the names of the kernel's own tasks begin; they end a moment later."""


class Leftovers:
    """Counts what is there, to tell later what is new."""

    def __init__(self) -> None:
        self._before = Resources()
        self._tasks = {task.id for task in anyio.get_running_tasks()}

    async def found(self) -> list[str]:
        """What is there now and was not then, after it had the time to go."""
        return [*await self._tasks_left(), *self._others_left()]

    async def _tasks_left(self) -> list[str]:
        left: list[str] = []
        for _ in range(_STEPS):
            left = [task.name or "?" for task in anyio.get_running_tasks() if task.id not in self._tasks]
            left = [name for name in left if not name.startswith(_KERNEL_TASKS)]
            if not left:
                break
            await anyio.lowlevel.checkpoint()
        return [f"the task {name!r}" for name in left]

    def _others_left(self) -> list[str]:
        found = self._before.leaks()
        if not any(_counts(each) for each in found):
            return []
        return [each for each in self._before.leaks_after_patience() if _counts(each)]


def _counts(leak: str) -> bool:
    return leak.startswith(("the thread", "the process"))


async def temporary_files_left(mounted: MountedModule) -> list[str]:
    """The names of temporary files of a closed mounted that are still there when a moment has passed."""
    left = _names(mounted)
    give_up = anyio.current_time() + PATIENCE
    while left and anyio.current_time() < give_up:
        await anyio.sleep(_PAUSE)
        left = _names(mounted)
    return left


def _names(mounted: MountedModule) -> list[str]:
    return sorted(path.name for path in mounted.temporary.iterdir())
