"""Two sessions in one process: what the second one sees must not depend on the first.

The same calls are made in a first session and, while that is open, in a second of the same user in another directory. If the
second answers otherwise, and a freshly imported module answers like the first, then something is shared. Above stands the check; below stands the mounted.
"""

from __future__ import annotations

from typing import Any

import attrs

from amplifier.conformance.harness.cpu_clock import unstalled_time
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.load import load_anew

_ROUNDS = ((0.03, 12), (0.3, 3))
"""Below so many seconds for a round so many rounds, as what is counted may show only after a while; one for a slow module."""


async def look_for_sharing(ctx: CheckContext, config: dict[str, Any]) -> None:
    """Compare what three sessions see that are mounted with these settings."""
    loaded = attrs.evolve(ctx.loaded, config=config)
    fresh = attrs.evolve(ctx, loaded=load_anew(loaded), faults=[], notes=[])
    async with fresh.mount() as first:
        started = unstalled_time()
        alone = await _answers(first, 1)
        seconds = unstalled_time() - started
        rounds = next((count for most, count in _ROUNDS if seconds < most), 1)
        alone += await _answers(first, rounds - 1)
        async with fresh.mount(neighbour=first) as second:
            beside = await _answers(second, rounds, first)
    if alone == beside:
        return
    again = attrs.evolve(fresh, loaded=load_anew(loaded))
    async with again.mount() as third:
        if await _answers(third, rounds) != alone:
            return  # it never answers the same, so nothing follows
    for (name, given, usual), (_, _, other) in zip(alone, beside, strict=False):
        if usual != other:
            what = f"in a second session {name} gave {_short(other)}, because a first one had been there; expected {_short(usual)}"
            ctx.fault("A16", what, given=given)
            return


async def _answers(
    mounted: MountedModule, rounds: int, neighbour: MountedModule | None = None
) -> list[tuple[str, Any, Any]]:
    found = []
    # Both sessions are in the midst of their work: what an ended one has put away says nothing.
    for operation in [each for each in typical_operations(mounted) if not each.is_last] * rounds:
        outcome = await mounted.call(operation.run, mounted)
        value = outcome.value if outcome.returned else type(outcome.error).__name__
        found.append((operation.name, operation.given, _without_session(value, mounted, neighbour)))
    return found


def _without_session(value: Any, mounted: MountedModule, neighbour: MountedModule | None) -> str:
    """A value as text in which nothing names the session or its directories."""
    text = repr(value).replace(mounted.session.session_id, "<session>")
    # Its own first: they may lie among the neighbour's temporary files. Home and those are one for both, the rest is not.
    text = text.replace(str(mounted.directory.parent), "<place>")
    if neighbour is not None:
        for folder in (neighbour.directory.parent / "home", neighbour.temporary):
            text = text.replace(str(folder), f"<place>/{folder.name}")
    return text


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
