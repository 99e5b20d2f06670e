"""Files after a cancelled call: whole, old or new. Above stands the check; below stand the scene and `cancel_at`."""

from __future__ import annotations

from contextlib import suppress

from amplifier.testing import cancel_at

from ._cancelling import _NEVER, _chosen, _coroutine
from ._exercise import exercises
from ._resources import files_below
from ._scene import CALL_SECONDS, IGNORED_AFTER, Scene, Stage

Files = dict[str, bytes | None]


async def look_for_torn_files(stage: Stage) -> None:
    """Compare the files after a cancelled call with those before and after an undisturbed one."""
    async with stage.scene() as scene:
        count = len(exercises(scene))
    for index in range(count):
        first, second = await _undisturbed(stage, index), await _undisturbed(stage, index)
        if first is None or second is None or first[0] == first[1]:
            continue
        # Files that differ from run to run (dates, ids) have no "new" to compare with.
        steady = {name for name in first[1] if first[1][name] == second[1].get(name)}
        for k in _chosen(first[2], stage):
            if await _cancelled(stage, index, k, first[0], first[1], steady):
                return


def _files(scene: Scene) -> Files:
    """The files of a scene, under names that do not depend on its session."""
    session_id = scene.session.session_id
    return {name.replace(session_id, "<session>"): text for name, text in files_below(scene.directory).items()}


async def _undisturbed(stage: Stage, index: int) -> tuple[Files, Files, int] | None:
    async with stage.scene() as scene:
        exercise = exercises(scene)[index]
        before = _files(scene)
        outcome = await scene.call(cancel_at, _NEVER, _coroutine(exercise, scene))
        if not outcome.returned:
            return None
        return before, _files(scene), outcome.value.suspensions


async def _cancelled(stage: Stage, index: int, k: int, old: Files, new: Files, steady: set[str]) -> bool:
    async with stage.scene() as scene:
        exercise = exercises(scene)[index]
        trial = None
        with stage.alarm(CALL_SECONDS + IGNORED_AFTER, "A8", exercise.name), suppress(Exception):
            trial = await cancel_at(k, _coroutine(exercise, scene))
        if trial is None or not trial.fired:
            return False
        for name, content in _files(scene).items():
            complaint = _complaint(name, content, old, new, steady)
            if complaint is not None:
                what = f"{exercise.name} was cancelled, and {complaint}"
                stage.fault("A10", what, given=exercise.given, cancelled_at=trial.where)
                return True
    return False


def _complaint(name: str, content: bytes | None, old: Files, new: Files, steady: set[str]) -> str | None:
    if name in old and content == old[name]:
        return None
    if name not in new:
        return None if content is None else f"the half-written file {name!r} was left behind"
    if name not in steady or content == new[name] or content is None:
        return None
    whole = new[name]
    if whole is not None and content and content.endswith(b"\n") and whole.startswith(content):
        return None  # a log of which the first lines were written: each of them is whole
    return f"the file {name!r} holds neither what it held before nor what it was to hold"
