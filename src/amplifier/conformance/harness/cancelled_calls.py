"""Cancels a call of the subject at its suspensions, one after another, and looks at what is left of it.

Fault injection for modules: each point gets a fresh mounted in which the same call is cancelled many times, since a slot that
is lost at every cancellation shows only when the slots run out; then the subject has to work as before, and when it is closed
nothing may remain. A call is swept as the first of a session and, where it goes another way then, after all the others. Above
stand the checks of cancellation; below stand the mounted and `amplifier.testing.cancel_at`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from amplifier.testing import cancel_at

from .cpu_clock import process_cpu_wait
from .leftovers import Leftovers, temporary_files_left
from .mounted_module import CALL_SECONDS, CANCEL_GRACE, CheckContext, Fault, MountedModule, Outcome
from .time_budget import Budget
from .typical_use import Operation, typical_operations

REPEATS = 12
"""How often a call is cancelled at one point before the subject is asked to work again."""
ENDS_WITHIN = 1.0
_NEVER = 1_000_000_000
_SECONDS = 8.0
"""For the whole cancel_at_every_suspension of the quick profile; reached by modules only whose calls take long."""
_SLOW = ((0.25, 5, 4), (0.05, 10, 6))
"""A call that takes at least so many seconds is cancelled at so many points, so many times at each."""


@attrs.frozen
class _Variant:
    """One operation as it goes in a new session, or in one that has been used.

    Attributes:
        index: Which operation.
        is_warm: Whether every operation was done once before.
        suspensions: How often it suspends.
        usual: How it ends when it is done a second time.
        seconds: How long it takes.
    """

    index: int
    is_warm: bool
    suspensions: int
    usual: Outcome
    seconds: float


async def cancel_at_every_suspension(ctx: CheckContext) -> None:
    """Cancel every operation at its suspensions, by scope and, on asyncio, by ``Task.cancel()``."""
    budget = Budget(ctx, _SECONDS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        for way in await _ways(ctx, index, count):
            if await _is_broken(ctx, way, budget):
                return  # the first point that shows it says enough; the rest would say the same
    if budget.is_spent():
        ctx.notes.append("its calls take long, so they were not cancelled at every point")


async def _ways(ctx: CheckContext, index: int, count: int) -> list[_Variant]:
    first = await _undisturbed(ctx, index, is_warm=False)
    if count < 2:
        return [] if first is None else [first]
    later = await _undisturbed(ctx, index, is_warm=True)
    if first is None or later is None:
        return [way for way in (first, later) if way is not None]
    is_other = later.suspensions != first.suspensions or _gist(later.usual) != _gist(first.usual)
    return [first, later] if is_other else [first]


async def _is_broken(ctx: CheckContext, way: _Variant, budget: Budget) -> bool:
    before = len(ctx.faults)
    points, repeats = next(((p, r) for slow, p, r in _SLOW if way.seconds >= slow), (ctx.points, REPEATS))
    remains = Leftovers()
    tried: list[tuple[int, bool]] = []
    for k in _chosen(way.suspensions, ctx, points):
        for native in (False, True) if ctx.backend == "asyncio" else (False,):
            if budget.is_spent():
                break
            tried.append((k, native))
            ctx.faults += await _confirmed(ctx, way, k, native, repeats)
            if len(ctx.faults) > before:
                return True
    if await remains.found():
        await _blame_a_point(ctx, way, tried)
    return len(ctx.faults) > before


def _chosen(suspensions: int, ctx: CheckContext, points: int | None = None) -> list[int]:
    most = min(ctx.points, points or ctx.points)
    every = range(1, suspensions + 1)
    if suspensions <= most:
        return list(every)
    return sorted({1, suspensions, *random.Random(ctx.seed).sample(every, most)})


async def _undisturbed(ctx: CheckContext, index: int, *, is_warm: bool) -> _Variant | None:
    """How often the operation suspends, and how it ends when done again; None if it does not end by itself."""
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, index, is_warm=is_warm)
        first = await mounted.call(cancel_at, _NEVER, _coroutine(operation, mounted))
        again = await mounted.call(operation.run, mounted)
        if first.kind == "raised" and again.kind == "raised":
            return None  # says nothing about cancellation; other checks speak about what it raises
        if not first.returned:
            ctx.notes.append(f"{operation.name} {first}, so it was not cancelled at every point")
            return None
        return _Variant(index, is_warm, first.value.suspensions, again, min(first.seconds, again.seconds))


async def _ready(mounted: MountedModule, index: int, *, is_warm: bool) -> Operation:
    every = typical_operations(mounted)
    for each in every if is_warm else ():
        await mounted.call(each.run, mounted)
    return every[index]


def _coroutine(operation: Operation, mounted: MountedModule) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def run() -> Any:
        return await operation.run(mounted)

    return run


# ── one point ──


async def _confirmed(ctx: CheckContext, way: _Variant, k: int, native: bool, repeats: int) -> list[Fault]:
    """What is wrong at one point; what may have been chance is looked at twice: calls fail now and then, and take long."""
    trial = attrs.evolve(ctx, faults=[])
    await _cancel_repeatedly(trial, way, k, native, repeats)
    if any(fault.clause in ("A8", "A9") for fault in trial.faults):
        again = attrs.evolve(ctx, faults=[])
        await _cancel_repeatedly(again, way, k, native, repeats)
        return trial.faults if again.faults else []
    return trial.faults


async def _cancel_repeatedly(ctx: CheckContext, way: _Variant, k: int, native: bool, repeats: int) -> None:
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, way.index, is_warm=way.is_warm)
        how = "Task.cancel()" if native else "its cancel scope"
        where = ""
        for _ in range(repeats):
            waited = process_cpu_wait()
            with ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", f"{operation.name}, cancelled by {how},"):
                try:
                    trial = await cancel_at(k, _coroutine(operation, mounted), native=native)
                except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                    if where and way.usual.returned and (await mounted.call(operation.run, mounted)).kind == "raised":
                        break  # not this cancellation but the one before: it is no longer whole
                    what = (
                        f"{operation.name} was cancelled by {how} and raised {type(error).__name__}: {str(error)[:200]}"
                    )
                    ctx.fault("A7", what, given=operation.given, error=error, cancelled_at=where)
                    return
            if not trial.fired:
                break  # it goes another way now, which is looked at below
            where = trial.where
            details = {"given": operation.given, "cancelled_at": where}
            if trial.swallowed:
                ctx.fault("A7", f"{operation.name} was cancelled by {how} and returned all the same", **details)
                return
            if trial.seconds > ENDS_WITHIN and trial.seconds - (process_cpu_wait() - waited) > ENDS_WITHIN:
                what = f"{operation.name} went on for {trial.seconds:.1f} s after it was cancelled by {how}"
                ctx.fault("A8", what, **details)
                return
        await _expect_whole(ctx, mounted, operation, way, where, repeats)
        await mounted.close()
        for name in await temporary_files_left(mounted):
            what = f"{operation.name} was cancelled, and the temporary file {name!r} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=where)
            return


async def _expect_whole(
    ctx: CheckContext, mounted: MountedModule, operation: Operation, way: _Variant, where: str, repeats: int
) -> None:
    after = await mounted.call(operation.run, mounted)
    if _gist(after) == _gist(way.usual):
        return
    if after.kind == way.usual.kind and await _gist_after_many(ctx, way, repeats) != _gist(way.usual):
        return  # so many calls are too many for it, cancelled or not
    ended = f"gave {str(after.value)[:150]}" if after.returned else str(after)
    what = f"after {repeats} cancelled calls {operation.name} {ended}; without them it {way.usual}"
    ctx.fault("A9", what, given=operation.given, cancelled_at=where, error=after.error)


def _gist(outcome: Outcome) -> str:
    """How a call ended, in a word: a tool may have returned its failure, a hook has decided, a resolver has found much."""
    value = outcome.value
    if isinstance(value, list) and value and isinstance(value[0], bool):
        return str(value[0])
    if isinstance(value, dict) and "action" in value:
        return str(value["action"])
    if isinstance(value, dict) and "files" in value:
        return str(value["files"])
    return outcome.kind


async def _gist_after_many(ctx: CheckContext, way: _Variant, repeats: int) -> str:
    async with ctx.mount() as mounted:
        same = await _ready(mounted, way.index, is_warm=way.is_warm)
        for _ in range(repeats):
            await mounted.call(same.run, mounted)
        return _gist(await mounted.call(same.run, mounted))


# ── what remains ──


async def _blame_a_point(ctx: CheckContext, way: _Variant, tried: list[tuple[int, bool]]) -> None:
    """Something remained after the cancel_at_every_suspension of an operation; find a point at which one cancellation leaves it behind."""
    for k, native in tried:
        remains = Leftovers()
        async with ctx.mount() as mounted:
            operation = await _ready(mounted, way.index, is_warm=way.is_warm)
            with ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", operation.name):
                try:
                    where = (await cancel_at(k, _coroutine(operation, mounted), native=native)).where
                except Exception:  # noqa: BLE001 — foreign code; the cancel_at_every_suspension itself says what it raises
                    continue
        for left in (await remains.found())[:1]:
            what = f"{operation.name} was cancelled, and {left} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=where)
            return
