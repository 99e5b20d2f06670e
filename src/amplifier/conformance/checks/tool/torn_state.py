"""What a module shows of itself after one cancelled call: as if the call had not been made, or as if it had been completed.

State is seen from outside only: by what the module answers to ordinary use. Above stand the checks of tools and hooks; below
stand the typical_operations and `cancel_at`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from amplifier.conformance.harness.cancelled_calls import _NEVER, _chosen, _coroutine
from amplifier.conformance.harness.mounted_module import CALL_SECONDS, CANCEL_GRACE, CheckContext
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.testing import cancel_at

Shown = dict[str, str]
"""From a place in the answers to what stands there."""

_STATISTICS = re.compile(
    r"call|request|call_with_deadline|start|hit|miss|success|fail|complet|served|finish|stat|time|elapsed|duration|took|second|_ms|since"
)
"""Names of figures about the calls themselves; a call that was started and not completed may well count as just that."""


class _Hangs(Exception):
    """The module does not answer any more, which says nothing about its state; another check speaks about that."""


async def look_for_torn_state(ctx: CheckContext, budget: Budget) -> None:
    """Compare the answers after a cancelled call with those after none and after a completed one."""
    with suppress(_Hangs):
        await _look(ctx, budget)


async def _look(ctx: CheckContext, budget: Budget) -> None:
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        if budget.is_spent():
            return
        untouched, _, _ = await _probed(ctx, index, 0)
        completed, suspensions, _ = await _probed(ctx, index, _NEVER)
        if not suspensions or (await _probed(ctx, index, 0))[0] != untouched:
            continue
        if (await _probed(ctx, index, _NEVER))[0] != completed:
            continue  # it never shows the same, so nothing follows
        for k in _chosen(suspensions, ctx):
            if budget.is_spent():
                return
            shown, fired, where = await _probed(ctx, index, k)
            if fired and _is_torn(shown, untouched, completed):
                async with ctx.mount() as mounted:
                    operation = typical_operations(mounted)[index]
                what = f"{operation.name} was cancelled, and what the module shows now is half of what it did: {_halves(shown, untouched, completed)}"
                ctx.fault("A9", what, given=operation.given, cancelled_at=where)
                return


async def _probed(ctx: CheckContext, index: int, k: int) -> tuple[Shown, int, str]:
    """What is shown after one call that was cancelled at its k-th suspension; after none, if k is 0."""
    async with ctx.mount() as mounted:
        fired, where = 0, ""
        if k:
            operation = typical_operations(mounted)[index]
            with ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", operation.name), suppress(Exception):
                trial = await cancel_at(k, _coroutine(operation, mounted))
                fired, where = (trial.suspensions if k == _NEVER else int(trial.fired)), trial.where
        shown: Shown = {}
        for number, each in enumerate(typical_operations(mounted)):
            outcome = await mounted.call(each.run, mounted)
            if outcome.kind == "late":
                raise _Hangs
            value = outcome.value if outcome.returned else type(outcome.error).__name__
            for path, leaf in _leaves(value, str(number)):
                shown[path] = leaf.replace(mounted.session.session_id, "<session>").replace(
                    str(mounted.directory.parent), "<place>"
                )
        return shown, fired, where


def _leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < 8:
        for key, member in value.items():
            yield from _leaves(member, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 8:
        yield f"{path}.length", str(len(value))
        for index, member in enumerate(value):
            yield from _leaves(member, f"{path}[{index}]", depth + 1)
    else:
        yield path, repr(value)


def _is_torn(shown: Shown, untouched: Shown, completed: Shown) -> bool:
    return bool(_differences(shown, untouched)) and bool(_differences(shown, completed))


def _differences(one: Shown, other: Shown) -> list[str]:
    return [
        path for path in {**one, **other} if one.get(path) != other.get(path) and not _STATISTICS.search(path.lower())
    ]


def _halves(shown: Shown, untouched: Shown, completed: Shown) -> str:
    path = sorted(_differences(shown, untouched))[0]
    other = sorted(_differences(shown, completed))[0]
    before, after = untouched.get(path, "nothing"), completed.get(other, "nothing")
    return f"{shown.get(path, 'nothing')[:60]} where there was {before[:60]}, {shown.get(other, 'nothing')[:60]} where there was to be {after[:60]}"
