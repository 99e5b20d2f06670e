"""Compares histories of calls: with a call that was cancelled, with the call made, and without it.

Nothing about the module has to be known: after a cancelled call it answers as if the call had been made, or as if it had not. A module that does not do
the same every time shows nothing, and so each difference has to show twice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from amplifier.conformance.checks.every_module.cancellation import cancel_once, chosen_suspensions
from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.calls import NEVER, first_difference
from amplifier.conformance.target.mounted import CheckContext, MountedModule
from amplifier.conformance.target.use import Operation, other_operations, typical_operations

_HISTORIES = 6
_LENGTHS = (2, 3, 5)
_POINTS = 4
_CALLS = 1_500
_NUMBER = re.compile(r"\d+(\.\d+)?")


@check("A9", kind="cancellation", types=("tool", "hook", "provider"), needs_success=("A9",))
async def goes_on_as_if(ctx: CheckContext) -> None:
    """Draws histories of calls and cancels one of them; what follows is as if it had been made, or as if it had not."""
    if ctx.loaded.starts_processes:
        return
    async with ctx.mount() as mounted:
        count = len(_operations(mounted))
    chance, budget = random.Random(ctx.seed), ctx.budget(_CALLS)
    for number in range(_HISTORIES if count else 0):
        history = [chance.randrange(count) for _ in range(_LENGTHS[number % len(_LENGTHS)])]
        at = chance.randrange(len(history))
        if budget.is_spent() or await _is_torn(ctx, history, at):
            return


def _operations(mounted: MountedModule) -> list[Operation]:
    return [each for each in [*typical_operations(mounted), *other_operations(mounted)] if not each.is_last]


async def _is_torn(ctx: CheckContext, history: Sequence[int], at: int) -> bool:
    made, trial = await _answers(ctx, history, at, NEVER)
    left_out, _ = await _answers(ctx, [*history[:at], *history[at + 1 :]], at, 0)
    for k in chosen_suspensions(ctx, trial.suspensions, _POINTS) if trial is not None else ():
        after, cancelled = await _answers(ctx, history, at, k)
        if cancelled is None or not cancelled.fired or _plain(after) in (_plain(made), _plain(left_out)):
            continue
        repeated = [(await _answers(ctx, history, at, again))[0] for again in (NEVER, k)]
        if repeated != [made, after]:
            return False  # it is not the same every time
        async with ctx.mount() as mounted:
            calls = [_operations(mounted)[index] for index in history]
        place = next(
            number for number, pair in enumerate(zip(_plain(made), _plain(after), strict=True)) if pair[0] != pair[1]
        )
        if "did not end within" in after[place]:
            return False  # calls that hang after a cancelled one are found by `survives_cancellation`
        what = f"{calls[at].name} was cancelled as call {at + 1} of {len(calls)}; after that a call gave"
        given = {"calls": [each.given for each in calls], "cancelled": at + 1}
        ctx.fault(
            "A9", f"{what} {first_difference(made[place], after[place])}", given=given, cancelled_at=cancelled.where
        )
        return True
    return False


def _plain(answers: list[str]) -> list[str]:
    """Answers without numbers: a module may count a call that was cancelled."""
    return [_NUMBER.sub("0", answer) for answer in answers]


async def _answers(ctx: CheckContext, history: Sequence[int], at: int, k: int) -> tuple[list[str], Any]:
    """What the calls of a history answer, one of which is cancelled at its k-th suspension unless k is 0; and that call."""
    answers, trial = [], None
    async with ctx.fresh().mount() as mounted:
        operations = _operations(mounted)
        for number, index in enumerate(history):
            if k and number == at:
                trial = await cancel_once(mounted, operations[index], k)
            else:
                answers.append(await _answer(mounted, operations[index]))
        answers += [await _answer(mounted, each) for each in operations]
    return answers, trial


async def _answer(mounted: MountedModule, operation: Operation) -> str:
    outcome = await mounted.call(operation.run, mounted)
    return mounted.without_session(repr(outcome.value)) if outcome.returned else str(outcome)
