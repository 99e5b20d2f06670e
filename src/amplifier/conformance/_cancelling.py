"""Cancels a call of the subject at its suspensions, one after another, and looks at what is left of it.

Fault injection for modules: each point gets a fresh scene in which the same call is cancelled many times, since a slot that
is lost at every cancellation shows only when the slots run out; then the subject has to work as before. Above stand the
checks of cancellation; below stand the scene and `amplifier.testing.cancel_at`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from amplifier.testing import cancel_at

from ._exercise import Exercise, exercises
from ._scene import CALL_SECONDS, IGNORED_AFTER, Outcome, Scene, Stage

REPEATS = 12
"""How often a call is cancelled at one point before the subject is asked to work again."""
ENDS_WITHIN = 1.0
_NEVER = 1_000_000_000

Choose = Callable[[Scene], list[Exercise]]
Aftermath = Callable[[Scene, Exercise, str], Awaitable[None]]


async def sweep(stage: Stage, choose: Choose, aftermath: Aftermath | None = None) -> None:
    """Cancel every exercise at every suspension, by scope and, on asyncio, by ``Task.cancel()``.

    Args:
        stage: Where; at most `Stage.points` points of each exercise are tried.
        choose: Gives the exercises of a scene; the same ones for every scene.
        aftermath: Looks at the scene after a cancelled call, with the await at which it was cancelled.
    """
    async with stage.scene() as scene:
        count = len(choose(scene))
    for index in range(count):
        baseline = await _undisturbed(stage, choose, index)
        if baseline is None:
            continue
        suspensions, outcome = baseline
        for k in _chosen(suspensions, stage):
            for native in (False, True) if stage.backend == "asyncio" else (False,):
                before = len(stage.faults)
                await _cancel_repeatedly(stage, choose, index, k, native, outcome, aftermath)
                if len(stage.faults) > before:
                    return  # the first point that shows it says enough; the rest would say the same


def _chosen(suspensions: int, stage: Stage) -> list[int]:
    points = range(1, suspensions + 1)
    if suspensions <= stage.points:
        return list(points)
    return sorted({1, suspensions, *random.Random(stage.seed).sample(points, stage.points)})


async def _undisturbed(stage: Stage, choose: Choose, index: int) -> tuple[int, Outcome] | None:
    """How often the exercise suspends, and how it ends when done again; None if it does not end by itself."""
    async with stage.scene() as scene:
        exercise = choose(scene)[index]
        first = await scene.call(cancel_at, _NEVER, _coroutine(exercise, scene))
        again = await scene.call(exercise.run, scene)
        if first.kind == "raised" and again.kind == "raised":
            return 0, again  # says nothing about cancellation; other checks speak about what it raises
        if not first.returned:
            stage.notes.append(f"{exercise.name} {first}, so it was not cancelled at every point")
            return None
        return first.value.suspensions, again


def _coroutine(exercise: Exercise, scene: Scene) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def run() -> Any:
        return await exercise.run(scene)

    return run


async def _cancel_repeatedly(
    stage: Stage, choose: Choose, index: int, k: int, native: bool, usual: Outcome, aftermath: Aftermath | None
) -> None:
    async with stage.scene() as scene:
        exercise = choose(scene)[index]
        how = "Task.cancel()" if native else "its cancel scope"
        where = ""
        for _ in range(REPEATS):
            with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", f"{exercise.name}, cancelled by {how},"):
                try:
                    trial = await cancel_at(k, _coroutine(exercise, scene), native=native)
                except Exception as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                    if where and usual.returned and (await scene.call(exercise.run, scene)).kind == "raised":
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
            if trial.seconds > ENDS_WITHIN:
                what = f"{exercise.name} went on for {trial.seconds:.1f} s after it was cancelled by {how}"
                stage.fault("A8", what, **details)
                return
        await _expect_whole(stage, scene, exercise, usual, where)
        if aftermath is not None:
            await aftermath(scene, exercise, where)


async def _expect_whole(stage: Stage, scene: Scene, exercise: Exercise, usual: Outcome, where: str) -> None:
    after = await scene.call(exercise.run, scene)
    if _gist(after) == _gist(usual):
        return
    if after.kind == usual.kind and await _gist_after_many(stage, exercise) != _gist(usual):
        return  # so many calls are too many for it, cancelled or not
    ended = f"gave {str(after.value)[:150]}" if after.returned else str(after)
    what = f"after {REPEATS} cancelled calls {exercise.name} {ended}; without them it {usual}"
    stage.fault("A9", what, given=exercise.given, cancelled_at=where, error=after.error)


def _gist(outcome: Outcome) -> str:
    """How a call ended, in a word: a tool may have returned its failure, a hook has decided."""
    value = outcome.value
    if isinstance(value, list) and value and isinstance(value[0], bool):
        return str(value[0])
    if isinstance(value, dict) and "action" in value:
        return str(value["action"])
    return outcome.kind


async def _gist_after_many(stage: Stage, exercise: Exercise) -> str:
    async with stage.scene() as scene:
        alike = [each for each in exercises(scene) if (each.name, each.given) == (exercise.name, exercise.given)]
        same = next(iter(alike), exercise)
        for _ in range(REPEATS):
            await scene.call(same.run, scene)
        return _gist(await scene.call(same.run, scene))
