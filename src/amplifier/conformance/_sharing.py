"""Two sessions in one process: what the second one sees must not depend on the first.

The same calls are made in a first session and, while that is open, in a second. If the second answers otherwise, and a
freshly imported module answers like the first, then something is shared. Above stands the check; below stands the scene.
"""

from __future__ import annotations

from typing import Any

import attrs

from ._exercise import exercises
from ._loading import load_anew
from ._scene import Scene, Stage

_ROUNDS = 3
"""What is counted may show only after a while."""


async def look_for_sharing(stage: Stage) -> None:
    """Compare what three sessions see."""
    fresh = attrs.evolve(stage, loaded=load_anew(stage.loaded), faults=[], notes=[])
    async with fresh.scene() as first:
        alone = await _answers(first)
        async with fresh.scene() as second:
            beside = await _answers(second)
        after_it = await _answers(first)
    if alone == beside:
        return
    again = attrs.evolve(fresh, loaded=load_anew(stage.loaded))
    async with again.scene() as third:
        if await _answers(third) != alone:
            return  # it never answers the same, so nothing follows
    del after_it
    for (name, given, usual), (_, _, other) in zip(alone, beside, strict=False):
        if usual != other:
            what = f"in a second session {name} gave {_short(other)}, because a first one had been there; expected {_short(usual)}"
            stage.fault("A16", what, given=given)
            return


async def _answers(scene: Scene) -> list[tuple[str, Any, Any]]:
    found = []
    for exercise in exercises(scene) * _ROUNDS:
        outcome = await scene.call(exercise.run, scene)
        value = outcome.value if outcome.returned else type(outcome.error).__name__
        found.append((exercise.name, exercise.given, _without_session(value, scene)))
    return found


def _without_session(value: Any, scene: Scene) -> str:
    """A value as text in which nothing names the session or its directories."""
    text = repr(value).replace(scene.session.session_id, "<session>")
    return text.replace(str(scene.directory.parent), "<place>")


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
