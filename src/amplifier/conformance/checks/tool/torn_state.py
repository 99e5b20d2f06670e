"""Compares a module's state after one cancelled call with its state after no call and after a completed one.

The state is seen from outside only: by the results of typical operations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from amplifier.conformance.harness.calls.cancelled import NEVER, cancel_once, chosen_suspensions
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.harness.work_budget import Budget

_CALLS = 4_000
_State = dict[str, str]
"""From a path in the results to the value there."""

_STATISTICS = re.compile(
    r"call|request|attempt|start|hit|miss|success|fail|complet|served|finish|stat|time|elapsed|duration|took|second|_ms|since"
)
"""Names of figures about the calls themselves, which may count a call that was started and not completed."""


class _Hangs(Exception):
    """The module does not return any more, which shows nothing about its state; another check reports it."""


@check("A9", kind="cancellation", types=("tool", "hook"), needs_success=("A9",))
async def tears_no_state(ctx: CheckContext) -> None:
    """Cancels a call once at each suspension; the state must be that after no call, or that after a completed one."""
    budget = Budget(ctx, _CALLS)
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)
    with suppress(_Hangs):
        for index, operation in enumerate(operations):
            if budget.is_spent():
                return
            old, _ = await _state_after(ctx, index, 0)
            new, completed = await _state_after(ctx, index, NEVER)
            suspensions = 0 if completed is None else completed.suspensions
            if not suspensions or (await _state_after(ctx, index, 0))[0] != old:
                continue
            if (await _state_after(ctx, index, NEVER))[0] != new:
                continue  # it is not deterministic, so nothing follows
            for k in chosen_suspensions(ctx, suspensions):
                if budget.is_spent():
                    return
                state, trial = await _state_after(ctx, index, k)
                if trial is None or not trial.fired:
                    continue
                lost, extra = _differences(state, new), _differences(state, old)
                if lost and extra:
                    if (await _state_after(ctx, index, 0))[0] != old:
                        break  # what it shows has changed meanwhile by itself, such as a time of day
                    half = f"{_at(state, extra[0])} where there was {_at(old, extra[0])}"
                    other = f"{_at(state, lost[0])} where there was to be {_at(new, lost[0])}"
                    what = f"{operation.name} was cancelled, and what the module shows now is half of what it did"
                    ctx.fault("A9", f"{what}: {half}, {other}", given=operation.given, cancelled_at=trial.where)
                    return


async def _state_after(ctx: CheckContext, index: int, k: int) -> tuple[_State, Any]:
    """The state after one call that is cancelled at its k-th suspension, or after no call if k is 0."""
    async with ctx.mount() as mounted:
        trial = await cancel_once(mounted, typical_operations(mounted)[index], k) if k else None
        state: _State = {}
        for number, each in enumerate(typical_operations(mounted)):
            outcome = await mounted.call(each.run, mounted)
            if outcome.kind == "late":
                raise _Hangs
            value = outcome.value if outcome.returned else type(outcome.error).__name__
            for path, leaf in _leaves(value, str(number)):
                state[path] = mounted.without_session(leaf)
        return state, trial


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


def _differences(one: _State, other: _State) -> list[str]:
    paths = {path for path in {**one, **other} if one.get(path) != other.get(path)}
    return sorted(path for path in paths if not _STATISTICS.search(path.lower()))


def _at(state: _State, path: str) -> str:
    return state.get(path, "nothing")[:60]
