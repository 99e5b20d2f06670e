"""Mounts that fail: cancelled at each suspension, or called with settings that they refuse.

The kernel undoes what a failed module has registered, cleanups included; so the check does the same before it looks for
leftovers.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from amplifier.conformance.harness.calls.outcome import call_with_deadline, reraise_own_cancellation
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CANCEL_GRACE, MOUNT_SECONDS, CheckContext
from amplifier.conformance.harness.resources.leftovers import new_tasks, task_ids
from amplifier.conformance.harness.resources.private_directories import fill_placeholders, private_directories
from amplifier.conformance.harness.resources.snapshot import Resources
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.harness.work_count import count_mount
from amplifier.conformance.target.source_literals import settings_in
from amplifier.testing import TestCoordinator, cancel_at

_NEVER = 1_000_000_000
_MAX_SETTINGS = 12
_SETTINGS_CALLS = 2_000
_BAD_VALUES: tuple[Any, ...] = (None, "text", -1, [], {"unknown": True})
"""What a user may write into a plan by mistake."""


class _Mount:
    """One call of mount with a coordinator of its own.

    Attributes:
        is_done: Mount has returned, or its context manager was entered.
        left: What remained after the module was undone.
    """

    def __init__(self, ctx: CheckContext, config: dict[str, Any]) -> None:
        self._ctx = ctx
        self._config = config
        self._cleanup: Any = None
        self.coordinator = TestCoordinator()
        self.is_done = False
        self.left: list[str] = []

    async def run(self) -> None:
        answer = self._ctx.loaded.mount_on(self._ctx.backend)(self.coordinator, self._config)
        if hasattr(type(answer), "__aenter__"):
            async with answer:
                self.is_done = True
        elif inspect.isawaitable(answer):
            self._cleanup = await answer
            self.is_done = True

    async def undo(self) -> None:
        """Run the cleanup and what is registered; other checks report what a cleanup does, and how long it takes."""
        for cleanup in (self._cleanup, self.coordinator.cleanup):
            if callable(cleanup):
                await call_with_deadline(cleanup)


@asynccontextmanager
async def _mount(ctx: CheckContext, config: dict[str, Any], what: str) -> AsyncIterator[_Mount]:
    """Prepare a mount; undo it after the body, and end the tasks it has left in the caller's task group."""
    before = Resources()
    count_mount()
    async with anyio.create_task_group() as group:
        tasks = task_ids()
        with private_directories() as (directory, _):
            mount = _Mount(ctx, fill_placeholders(config, directory))
            with ctx.alarm(MOUNT_SECONDS + CANCEL_GRACE, "A8", what):
                yield mount
            await mount.undo()
            mount.left += await new_tasks(tasks)
        group.cancel_scope.cancel()
    mount.left += before.leaks_after_patience()


@check("A5", "A7", kind="cancellation", without_instance=("A5", "A7"))
async def fails_without_traces(ctx: CheckContext) -> None:
    """Cancels mount at each suspension, and mounts with wrong settings; a failed mount may leave nothing behind."""
    await _cancel_mounts(ctx)
    await _mount_with_bad_settings(ctx)


async def _cancel_mounts(ctx: CheckContext) -> None:
    suspensions = await _cancel_mount(ctx, _NEVER, native=False)
    for k in range(1, min(suspensions or 0, ctx.points) + 1):
        for native in ctx.cancel_modes:
            if await _cancel_mount(ctx, k, native=native) is None:
                return


async def _cancel_mount(ctx: CheckContext, k: int, *, native: bool) -> int | None:
    """Mount and cancel at the k-th suspension; how often it suspends, or None when there is no more to learn."""
    async with _mount(ctx, ctx.loaded.config, "a cancelled mount") as mount:
        try:
            trial = await cancel_at(k, mount.run, native=native)
        except BaseException as error:  # noqa: BLE001 — foreign code: this is what is being looked for
            reraise_own_cancellation(error)
            if k != _NEVER:
                what = f"mount was cancelled and raised {type(error).__name__}: {str(error)[:200]}"
                ctx.fault("A7", what, error=error)
            return None
        if trial.swallowed:
            ctx.fault("A7", "mount was cancelled and returned all the same", cancelled_at=trial.where)
            return None
    if not trial.fired or trial.returned:
        return trial.suspensions  # other checks report what a mount that succeeded leaves behind
    for left in mount.left[:1]:
        ctx.fault("A5", f"mount was cancelled, and {left} was left behind", cancelled_at=trial.where)
        return None
    return trial.suspensions


async def _mount_with_bad_settings(ctx: CheckContext) -> None:
    """Set each setting that the source reads to a wrong value: a mount that raises must have ended what it began."""
    budget = Budget(ctx, _SETTINGS_CALLS)
    for key in settings_in(ctx.loaded.target)[:_MAX_SETTINGS]:
        for value in _BAD_VALUES:
            if budget.is_spent():
                return
            config = {**ctx.loaded.config, key: value}
            async with _mount(ctx, config, "a mount with wrong settings") as mount:
                outcome = await call_with_deadline(mount.run, seconds=MOUNT_SECONDS)
                mount.is_done |= outcome.returned
            if mount.left and not mount.is_done:
                ctx.fault("A5", f"mount failed, and {mount.left[0]} was left behind", given={"config": {key: value}})
                return
