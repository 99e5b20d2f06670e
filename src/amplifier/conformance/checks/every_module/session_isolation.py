"""Compares two sessions in one process: the results of the second must not depend on the first.

The same calls are made in a first session and, while that is open, in a second one of the same user in another directory.
If the second returns something else, and a freshly imported module returns the same as the first, then they share state.
"""

from __future__ import annotations

from typing import Any

import attrs

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.load import load_anew

_ROUNDS = 12
"""How often the calls are made, as shared counters may show late; once by a module that starts processes."""


@check("A16", kind="hygiene")
async def shares_nothing(ctx: CheckContext) -> None:
    """Makes the same calls in two sessions at once; the second gets the results that a new process would get."""
    for config in ctx.configs:
        await _compare_sessions(ctx, config)
        if ctx.faults:
            return


async def _compare_sessions(ctx: CheckContext, config: dict[str, Any]) -> None:
    loaded = attrs.evolve(ctx.loaded, config=config)
    fresh = attrs.evolve(ctx.fresh(), loaded=load_anew(loaded))
    async with fresh.mount() as first:
        rounds = 1 if loaded.starts_processes else _ROUNDS
        alone = await _results(first, rounds)
        async with fresh.mount(neighbour=first) as second:
            beside = await _results(second, rounds, first)
    if alone == beside:
        return
    async with attrs.evolve(fresh, loaded=load_anew(loaded)).mount() as third:
        if await _results(third, rounds) != alone:
            return  # it is not deterministic, so nothing follows
    for (name, given, usual), (_, _, other) in zip(alone, beside, strict=False):
        if usual != other:
            what = f"in a second session {name} gave {_short(other)}, because a first one had been there"
            ctx.fault("A16", f"{what}; expected {_short(usual)}", given=given)
            return


async def _results(
    mounted: MountedModule, rounds: int, neighbour: MountedModule | None = None
) -> list[tuple[str, Any, str]]:
    found = []
    # Operations that end a session are left out: both sessions have to be active.
    for operation in [each for each in typical_operations(mounted) if not each.is_last] * rounds:
        outcome = await mounted.call(operation.run, mounted)
        value = outcome.value if outcome.returned else type(outcome.error).__name__
        text = mounted.without_session(repr(value))
        if neighbour is not None:  # home and temporary files are the same for both
            for folder in (neighbour.directory.parent / "home", neighbour.temporary):
                text = text.replace(str(folder), f"<place>/{folder.name}")
        found.append((operation.name, operation.given, text))
    return found


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
