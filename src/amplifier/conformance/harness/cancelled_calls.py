"""Cancels a call of the subject at its suspensions, one after another, and looks at what is left of it.

Fault injection for modules: each point gets a fresh scene in which the same call is cancelled many times, since a slot that
is lost at every cancellation shows only when the slots run out; then the subject has to work as before, and when it is closed
nothing may remain. A call is swept as the first of a session and, where it goes another way then, after all the others. Above
stand the checks of cancellation; below stand the scene and `amplifier.testing.cancel_at`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from amplifier.testing import cancel_at

from .cpu_clock import everybody_kept_waiting
from .leftovers import Remains, temporary_files_left
from .mounted_module import CALL_SECONDS, IGNORED_AFTER, Fault, Outcome, Scene, Stage
from .time_budget import Budget
from .typical_use import Exercise, exercises

REPEATS = 12
"""How often a call is cancelled at one point before the subject is asked to work again."""
ENDS_WITHIN = 1.0
_NEVER = 1_000_000_000
_SECONDS = 8.0
"""For the whole sweep of the quick profile; reached by modules only whose calls take long."""
_SLOW = ((0.25, 5, 4), (0.05, 10, 6))
"""A call that takes at least so many seconds is cancelled at so many points, so many times at each."""


@attrs.frozen
class _Way:
    """One exercise as it goes in a new session, or in one that has been used.

    Attributes:
        index: Which exercise.
        is_warm: Whether every exercise was done once before.
        suspensions: How often it suspends.
        usual: How it ends when it is done a second time.
        seconds: How long it takes.
    """

    index: int
    is_warm: bool
    suspensions: int
    usual: Outcome
    seconds: float


async def sweep(stage: Stage) -> None:
    """Cancel every exercise at its suspensions, by scope and, on asyncio, by ``Task.cancel()``."""
    budget = Budget(stage, _SECONDS)
    async with stage.scene() as scene:
        count = len(exercises(scene))
    for index in range(count):
        for way in await _ways(stage, index, count):
            if await _is_broken(stage, way, budget):
                return  # the first point that shows it says enough; the rest would say the same
    if budget.is_spent():
        stage.notes.append("its calls take long, so they were not cancelled at every point")


async def _ways(stage: Stage, index: int, count: int) -> list[_Way]:
    first = await _undisturbed(stage, index, is_warm=False)
    if count < 2:
        return [] if first is None else [first]
    later = await _undisturbed(stage, index, is_warm=True)
    if first is None or later is None:
        return [way for way in (first, later) if way is not None]
    is_other = later.suspensions != first.suspensions or _gist(later.usual) != _gist(first.usual)
    return [first, later] if is_other else [first]


async def _is_broken(stage: Stage, way: _Way, budget: Budget) -> bool:
    before = len(stage.faults)
    points, repeats = next(((p, r) for slow, p, r in _SLOW if way.seconds >= slow), (stage.points, REPEATS))
    remains = Remains()
    tried: list[tuple[int, bool]] = []
    for k in _chosen(way.suspensions, stage, points):
        for native in (False, True) if stage.backend == "asyncio" else (False,):
            if budget.is_spent():
                break
            tried.append((k, native))
            stage.faults += await _confirmed(stage, way, k, native, repeats)
            if len(stage.faults) > before:
                return True
    if await remains.found():
        await _blame_a_point(stage, way, tried)
    return len(stage.faults) > before


def _chosen(suspensions: int, stage: Stage, points: int | None = None) -> list[int]:
    most = min(stage.points, points or stage.points)
    every = range(1, suspensions + 1)
    if suspensions <= most:
        return list(every)
    return sorted({1, suspensions, *random.Random(stage.seed).sample(every, most)})


async def _undisturbed(stage: Stage, index: int, *, is_warm: bool) -> _Way | None:
    """How often the exercise suspends, and how it ends when done again; None if it does not end by itself."""
    async with stage.scene() as scene:
        exercise = await _ready(scene, index, is_warm=is_warm)
        first = await scene.call(cancel_at, _NEVER, _coroutine(exercise, scene))
        again = await scene.call(exercise.run, scene)
        if first.kind == "raised" and again.kind == "raised":
            return None  # says nothing about cancellation; other checks speak about what it raises
        if not first.returned:
            stage.notes.append(f"{exercise.name} {first}, so it was not cancelled at every point")
            return None
        return _Way(index, is_warm, first.value.suspensions, again, min(first.seconds, again.seconds))


async def _ready(scene: Scene, index: int, *, is_warm: bool) -> Exercise:
    every = exercises(scene)
    for each in every if is_warm else ():
        await scene.call(each.run, scene)
    return every[index]


def _coroutine(exercise: Exercise, scene: Scene) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def run() -> Any:
        return await exercise.run(scene)

    return run


# ── one point ──


async def _confirmed(stage: Stage, way: _Way, k: int, native: bool, repeats: int) -> list[Fault]:
    """What is wrong at one point; what may have been chance is looked at twice: calls fail now and then, and take long."""
    trial = attrs.evolve(stage, faults=[])
    await _cancel_repeatedly(trial, way, k, native, repeats)
    if any(fault.clause in ("A8", "A9") for fault in trial.faults):
        again = attrs.evolve(stage, faults=[])
        await _cancel_repeatedly(again, way, k, native, repeats)
        return trial.faults if again.faults else []
    return trial.faults


async def _cancel_repeatedly(stage: Stage, way: _Way, k: int, native: bool, repeats: int) -> None:
    async with stage.scene() as scene:
        exercise = await _ready(scene, way.index, is_warm=way.is_warm)
        how = "Task.cancel()" if native else "its cancel scope"
        where = ""
        for _ in range(repeats):
            waited = everybody_kept_waiting()
            with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", f"{exercise.name}, cancelled by {how},"):
                try:
                    trial = await cancel_at(k, _coroutine(exercise, scene), native=native)
                except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                    if where and way.usual.returned and (await scene.call(exercise.run, scene)).kind == "raised":
                        break  # not this cancellation but the one before: it is no longer whole
                    what = (
                        f"{exercise.name} was cancelled by {how} and raised {type(error).__name__}: {str(error)[:200]}"
                    )
                    stage.fault("A7", what, given=exercise.given, error=error, cancelled_at=where)
                    return
            if not trial.fired:
                break  # it goes another way now, which is looked at below
            where = trial.where
            details = {"given": exercise.given, "cancelled_at": where}
            if trial.swallowed:
                stage.fault("A7", f"{exercise.name} was cancelled by {how} and returned all the same", **details)
                return
            if trial.seconds > ENDS_WITHIN and trial.seconds - (everybody_kept_waiting() - waited) > ENDS_WITHIN:
                what = f"{exercise.name} went on for {trial.seconds:.1f} s after it was cancelled by {how}"
                stage.fault("A8", what, **details)
                return
        await _expect_whole(stage, scene, exercise, way, where, repeats)
        await scene.close()
        for name in await temporary_files_left(scene):
            what = f"{exercise.name} was cancelled, and the temporary file {name!r} remains after cleanup"
            stage.fault("A14", what, given=exercise.given, cancelled_at=where)
            return


async def _expect_whole(stage: Stage, scene: Scene, exercise: Exercise, way: _Way, where: str, repeats: int) -> None:
    after = await scene.call(exercise.run, scene)
    if _gist(after) == _gist(way.usual):
        return
    if after.kind == way.usual.kind and await _gist_after_many(stage, way, repeats) != _gist(way.usual):
        return  # so many calls are too many for it, cancelled or not
    ended = f"gave {str(after.value)[:150]}" if after.returned else str(after)
    what = f"after {repeats} cancelled calls {exercise.name} {ended}; without them it {way.usual}"
    stage.fault("A9", what, given=exercise.given, cancelled_at=where, error=after.error)


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


async def _gist_after_many(stage: Stage, way: _Way, repeats: int) -> str:
    async with stage.scene() as scene:
        same = await _ready(scene, way.index, is_warm=way.is_warm)
        for _ in range(repeats):
            await scene.call(same.run, scene)
        return _gist(await scene.call(same.run, scene))


# ── what remains ──


async def _blame_a_point(stage: Stage, way: _Way, tried: list[tuple[int, bool]]) -> None:
    """Something remained after the sweep of an exercise; find a point at which one cancellation leaves it behind."""
    for k, native in tried:
        remains = Remains()
        async with stage.scene() as scene:
            exercise = await _ready(scene, way.index, is_warm=way.is_warm)
            with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", exercise.name):
                try:
                    where = (await cancel_at(k, _coroutine(exercise, scene), native=native)).where
                except Exception:  # noqa: BLE001 — foreign code; the sweep itself says what it raises
                    continue
        for left in (await remains.found())[:1]:
            what = f"{exercise.name} was cancelled, and {left} remains after cleanup"
            stage.fault("A14", what, given=exercise.given, cancelled_at=where)
            return
