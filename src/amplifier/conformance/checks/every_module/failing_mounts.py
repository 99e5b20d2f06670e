"""Mounts that do not succeed: cancelled at each suspension, or given settings that they refuse.

What a module has registered by then, cleanups included, the kernel undoes; so it is undone here before anybody looks. Above
stands the check in `checks/_mount.py`; below stand the mounted and `cancel_at`.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import (
    CANCEL_GRACE,
    MOUNT_SECONDS,
    CheckContext,
    fill_placeholders,
    private_directories,
)
from amplifier.conformance.harness.resource_snapshot import Resources
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.target.source_literals import settings_in
from amplifier.testing import TestCoordinator, cancel_at

_NEVER = 1_000_000_000
_CLEANUP_SECONDS = 2.0
_MOST_SETTINGS = 12
_SETTINGS_SECONDS = 2.0
_BAD_VALUES: tuple[Any, ...] = (None, "text", -1, [], {"unknown": True})
"""What a person may write into a plan by mistake."""


async def cancel_mounts(ctx: CheckContext) -> None:
    """Cancel mount at its first, second, third … suspension."""
    first = await _try_mount(ctx, _NEVER, native=False)
    if first is None:
        return
    for k in range(1, min(first, ctx.points) + 1):
        for native in (False, True) if ctx.backend == "asyncio" else (False,):
            if await _try_mount(ctx, k, native=native) is None:
                return


async def _try_mount(ctx: CheckContext, k: int, *, native: bool) -> int | None:
    """Mount, cancelled at the k-th suspension; how often it suspends, or None when there is no more to learn."""
    before = Resources()
    left: list[str] = []
    async with anyio.create_task_group() as group:
        tasks = {task.id for task in anyio.get_running_tasks()}
        with private_directories() as (directory, _):
            coordinator = TestCoordinator()
            cleanup: Any = None

            async def mount() -> None:
                nonlocal cleanup
                answer = ctx.loaded.mount(coordinator, fill_placeholders(ctx.loaded.config, directory))
                if hasattr(type(answer), "__aenter__"):
                    async with answer:
                        pass
                elif inspect.isawaitable(answer):
                    cleanup = await answer

            with ctx.alarm(MOUNT_SECONDS + CANCEL_GRACE, "A8", "a cancelled mount"):
                try:
                    trial = await cancel_at(k, mount, native=native)
                except Exception as error:  # noqa: BLE001 — foreign code
                    if k != _NEVER:
                        what = f"mount was cancelled and raised {type(error).__name__}: {str(error)[:200]}"
                        ctx.fault("A7", what, error=error)
                    return None
            if trial.swallowed:
                ctx.fault("A7", "mount was cancelled and returned all the same", cancelled_at=trial.where)
                return None
            if not trial.fired or trial.returned:
                if callable(cleanup):
                    # What a cleanup does, and how long, is another check's business.
                    with suppress(Exception), anyio.move_on_after(_CLEANUP_SECONDS):
                        answer = cleanup()
                        if inspect.isawaitable(answer):
                            await answer
                await _undo(coordinator)
                return trial.suspensions
            await _undo(coordinator)
            left = [task.name or "?" for task in await _still_running(tasks)]
        group.cancel_scope.cancel()
    leaks = [*(f"the task {name!r}" for name in left), *before.leaks_after_patience()]
    for leak in leaks[:1]:
        ctx.fault("A5", f"mount was cancelled, and {leak} was left behind", cancelled_at=trial.where)
    return None if leaks else trial.suspensions


async def _still_running(before: set[int]) -> list[Any]:
    left: list[Any] = []
    for _ in range(5):
        left = [task for task in anyio.get_running_tasks() if task.id not in before]
        if not left:
            return []
        await anyio.lowlevel.checkpoint()
    return left


async def _undo(coordinator: TestCoordinator) -> None:
    """What the kernel does for a module that failed: run the cleanups it has registered."""
    with suppress(Exception), anyio.move_on_after(_CLEANUP_SECONDS):
        await coordinator.cleanup()


async def give_bad_settings(ctx: CheckContext) -> None:
    """Give each setting that the source reads a wrong value: a mount that raises then must have ended what it began."""
    budget = Budget(ctx, _SETTINGS_SECONDS)
    for key in settings_in(ctx.loaded.subject)[:_MOST_SETTINGS]:
        for value in _BAD_VALUES:
            if budget.is_spent():
                return
            left = await _left_by_mounting_with(ctx, {**ctx.loaded.config, key: value})
            if left:
                ctx.fault("A5", f"mount failed, and {left[0]} was left behind", given={"config": {key: value}})
                return


async def _left_by_mounting_with(ctx: CheckContext, config: dict[str, Any]) -> list[str]:
    """What remains of a mount that raised; nothing if it did not."""
    before = Resources()
    tasks = {task.id for task in anyio.get_running_tasks()}
    with private_directories() as (directory, _):
        coordinator = TestCoordinator()
        with ctx.alarm(MOUNT_SECONDS + CANCEL_GRACE, "A8", "a mount with wrong settings"):
            failed = await _fails(ctx, coordinator, fill_placeholders(config, directory))
        await _undo(coordinator)
        if not failed:
            return []
        left = [f"the task {task.name!r}" for task in await _still_running(tasks)]
    return [*left, *before.leaks_after_patience()]


async def _fails(ctx: CheckContext, coordinator: TestCoordinator, config: Any) -> bool:
    """Whether mount raises; what it gives otherwise is ended at once."""
    is_mounted = False
    try:
        with anyio.fail_after(MOUNT_SECONDS):
            answer = ctx.loaded.mount(coordinator, config)
            if hasattr(type(answer), "__aenter__"):
                async with answer:
                    is_mounted = True
            elif inspect.isawaitable(answer):
                cleanup = await answer
                is_mounted = True
                if callable(cleanup):
                    ended = cleanup()
                    if inspect.isawaitable(ended):
                        await ended
    except Exception:  # noqa: BLE001 — foreign code: that it raises is what was asked for
        return not is_mounted
    return False
