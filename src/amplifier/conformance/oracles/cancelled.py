"""Fault injection: cancels typical operations of the module at their suspensions and checks what is left of it.

At each point the same call is cancelled many times in a fresh session, since a slot that is lost at every cancellation
shows only when the slots run out. Afterwards the module has to work as before, and nothing may remain once it is closed.
An operation is cancelled as the first of a session and, where it behaves differently then, after all the others.
"""

from __future__ import annotations

import random
from typing import Any

import attrs

from amplifier.conformance.oracles.leftovers import Leftovers, temporary_files_left
from amplifier.conformance.target.calls import Outcome, reraise_own_cancellation
from amplifier.conformance.target.clock import Budget, count_call, process_cpu_wait
from amplifier.conformance.target.mounted import CheckContext, Fault, MountedModule
from amplifier.conformance.target.use import Operation, typical_operations
from amplifier.testing import cancel_at

NEVER = 1_000_000_000
"""A suspension that no call reaches."""
_REPEATS = 20
"""How often a call is cancelled at one point before the module has to work again."""
_ENDS_WITHIN = 1.0
_CALLS = 10_000
"""The budget in the quick profile; only modules with many long operations reach it."""
_COSTLY = (3, 3)
"""A module that starts processes is cancelled at so many points of a call, so many times at each."""


def chosen_suspensions(ctx: CheckContext, suspensions: int, most: int | None = None) -> list[int]:
    """All suspensions of a call, or a sample with the first and the last one."""
    most = ctx.points if most is None else min(ctx.points, most)
    every = range(1, suspensions + 1)
    if suspensions <= most:
        return list(every)
    return sorted({1, suspensions, *random.Random(ctx.seed).sample(every, most)})


async def cancel_once(mounted: MountedModule, operation: Operation, k: int, *, native: bool = False) -> Any:
    """Run an operation and cancel it at its k-th suspension; None if it raised, which other checks report."""
    count_call()
    with mounted.ctx.alarm(what=operation.name):
        try:
            return await cancel_at(k, operation.run, mounted, native=native)
        except BaseException as error:  # noqa: BLE001 — foreign code: it may raise a group, or exit
            reraise_own_cancellation(error)
    return None


@attrs.frozen
class _Variant:
    """One operation in a new session, or in one that has been used.

    Attributes:
        index: Which operation.
        is_warm: Whether every operation was run once before.
        suspensions: How often it suspends.
        usual: How it ends when it is run a second time.
    """

    index: int
    is_warm: bool
    suspensions: int
    usual: Outcome


async def cancel_at_every_suspension(ctx: CheckContext) -> None:
    """Cancel every operation at its suspensions, by scope and, on asyncio, by ``Task.cancel()``."""
    budget = ctx.budget(_CALLS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        for variant in await _variants(ctx, index, count):
            if await _is_broken(ctx, variant, budget):
                return  # other points would show the same


async def _variants(ctx: CheckContext, index: int, count: int) -> list[_Variant]:
    first = await _undisturbed(ctx, index, is_warm=False)
    later = await _undisturbed(ctx, index, is_warm=True) if count > 1 else None
    found = [variant for variant in (first, later) if variant is not None]
    # The second variant is worth trying only if it behaves differently.
    return list({(each.suspensions, _gist(each.usual)): each for each in reversed(found)}.values())[::-1]


async def _is_broken(ctx: CheckContext, variant: _Variant, budget: Budget) -> bool:
    before = len(ctx.faults)
    points, repeats = _COSTLY if ctx.loaded.starts_processes else (ctx.points, _REPEATS)
    leftovers = Leftovers()
    tried: list[tuple[int, bool]] = []
    for k in chosen_suspensions(ctx, variant.suspensions, points):
        for native in ctx.cancel_modes:
            if budget.is_spent():
                break
            tried.append((k, native))
            ctx.faults += await _confirmed(ctx, variant, k, native, repeats)
            if len(ctx.faults) > before:
                return True
    if await leftovers.found():
        await _blame_a_point(ctx, variant, tried)
    return len(ctx.faults) > before


async def _undisturbed(ctx: CheckContext, index: int, *, is_warm: bool) -> _Variant | None:
    """How often the operation suspends, and how it ends when run again; None if it does not end by itself."""
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, index, is_warm=is_warm)
        first = await mounted.call(cancel_at, NEVER, operation.run, mounted)
        again = await mounted.call(operation.run, mounted)
        if first.kind == "raised" and again.kind == "raised":
            return None  # shows nothing about cancellation; other checks report what it raises
        if not first.returned:
            ctx.cut_short(f"{operation.name} {first}, so it was not cancelled at every point")
            return None
        return _Variant(index, is_warm, first.value.suspensions, again)


async def _ready(mounted: MountedModule, index: int, *, is_warm: bool) -> Operation:
    operations = typical_operations(mounted)
    for each in operations if is_warm else ():
        await mounted.call(each.run, mounted)
    return operations[index]


# ── one point ──


async def _confirmed(ctx: CheckContext, variant: _Variant, k: int, native: bool, repeats: int) -> list[Fault]:
    """The faults at one point; those that may be due to chance have to show twice: calls fail and take long at times."""
    trial = attrs.evolve(ctx, faults=[])
    await _cancel_repeatedly(trial, variant, k, native, repeats)
    if any(fault.clause in ("A8", "A9") for fault in trial.faults):
        again = attrs.evolve(ctx, faults=[])
        await _cancel_repeatedly(again, variant, k, native, repeats)
        return trial.faults if again.faults else []
    return trial.faults


async def _cancel_repeatedly(ctx: CheckContext, variant: _Variant, k: int, native: bool, repeats: int) -> None:
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, variant.index, is_warm=variant.is_warm)
        how = "Task.cancel()" if native else "its cancel scope"
        where = ""
        for _ in range(repeats):
            waited = process_cpu_wait()
            count_call()
            with ctx.alarm(what=f"{operation.name}, cancelled by {how},"):
                try:
                    trial = await cancel_at(k, operation.run, mounted, native=native)
                except BaseException as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                    reraise_own_cancellation(error)
                    worked = where and variant.usual.returned
                    if worked and (await mounted.call(operation.run, mounted)).kind == "raised":
                        break  # the cancellation before this one broke it
                    raised = f"{type(error).__name__}: {str(error)[:200]}"
                    what = f"{operation.name} was cancelled by {how} and raised {raised}"
                    ctx.fault("A7", what, given=operation.given, error=error, cancelled_at=where)
                    return
            if not trial.fired:
                break  # it takes another path now, which is checked below
            where = trial.where
            details = {"given": operation.given, "cancelled_at": where}
            if trial.swallowed:
                ctx.fault("A7", f"{operation.name} was cancelled by {how} and returned all the same", **details)
                return
            if trial.seconds > _ENDS_WITHIN and trial.seconds - (process_cpu_wait() - waited) > _ENDS_WITHIN:
                what = f"{operation.name} went on for more than {_ENDS_WITHIN:g} s after it was cancelled by {how}"
                ctx.fault("A8", what, **details)
                return
        await _check_works(mounted, operation, variant, where, repeats)
        await mounted.close()
        for name in (await temporary_files_left(mounted))[:1]:
            what = f"{operation.name} was cancelled, and the temporary file {name!r} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=where)


async def _check_works(
    mounted: MountedModule, operation: Operation, variant: _Variant, where: str, repeats: int
) -> None:
    after = await mounted.call(operation.run, mounted)
    usual = _gist(variant.usual)
    if _gist(after) == usual:
        return
    if after.kind == variant.usual.kind and await _gist_after_many(mounted.ctx, variant, repeats) != usual:
        return  # so many calls are too many for it, cancelled or not
    ended = f"gave {str(after.value)[:150]}" if after.returned else str(after)
    what = f"after {repeats} cancelled calls {operation.name} {ended}; without them it {variant.usual}"
    mounted.ctx.fault("A9", what, given=operation.given, cancelled_at=where, error=after.error)


def _gist(outcome: Outcome) -> str:
    """The essence of an outcome: the success of a tool, the action of a hook, the files that a resolver found."""
    value = outcome.value
    if isinstance(value, list) and value and isinstance(value[0], bool):
        return str(value[0])
    for key in ("action", "files"):
        if isinstance(value, dict) and key in value:
            return str(value[key])
    return outcome.kind


async def _gist_after_many(ctx: CheckContext, variant: _Variant, repeats: int) -> str:
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, variant.index, is_warm=variant.is_warm)
        for _ in range(repeats):
            await mounted.call(operation.run, mounted)
        return _gist(await mounted.call(operation.run, mounted))


async def _blame_a_point(ctx: CheckContext, variant: _Variant, tried: list[tuple[int, bool]]) -> None:
    """Something remained after all cancellations; find a point at which one cancellation leaves it behind."""
    for k, native in tried:
        leftovers = Leftovers()
        async with ctx.mount() as mounted:
            operation = await _ready(mounted, variant.index, is_warm=variant.is_warm)
            trial = await cancel_once(mounted, operation, k, native=native)
        for left in (await leftovers.found())[:1] if trial is not None else ():
            what = f"{operation.name} was cancelled, and {left} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=trial.where)
            return
