"""Two calls at the same time: each gets what it gets when they are made one after the other, in either order.

A module may remember, count and refuse; so a result counts only if both orders give the same, or if it holds the mark of the other call, and only where the module is
deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel

from amplifier.conformance.checks.every_module.differential import Answer, Scene
from amplifier.conformance.checks.registry import check
from amplifier.conformance.target.calls import Outcome, call_with_deadline
from amplifier.conformance.target.mounted import CANCEL_GRACE, CheckContext, MountedModule
from amplifier.conformance.target.use import Operation, other_operations, typical_operations

_MARKS = ("alphamark", "bravomark")
_HEAD_STARTS = (0, 1, 3)
"""Steps of the loop that the first call is ahead."""
_NUMBERS = (3, 8)
_MOST_PAIRS = 6
_SECONDS = 3.0
_BUDGET = 2_000
"""Calls of each check in the quick profile."""
_PAUSES = (0.0, 0.013, 0.04)
_CLAUSES = {"tool": "T10", "provider": "P14", "hook": "H3", "resolver": "R6"}


_Run = tuple[Answer, Answer, list[Answer]]
"""The answers to both calls, and what shows afterwards."""


def _pair(mounted: MountedModule, number: int) -> tuple[Operation, Operation] | None:
    """The operations of a pair: the same call with two marks, or two questions."""
    if mounted.loaded.module_type == "resolver":
        one, other = typical_operations(mounted), typical_operations(mounted)[1:]
    else:
        marked = [other_operations(mounted, *each) for each in zip(_MARKS, _NUMBERS, strict=True)]
        one, other = marked if all(marked) else [typical_operations(mounted)] * 2
    return (one[number], other[number]) if number < min(len(one), len(other), _MOST_PAIRS) else None


@check(
    "T10", "P14", "H3", "H5", "R6",
    kind="behaviour", types=_CLAUSES, needs_success=("T10", "P14"),
)  # fmt: skip
async def answers_the_same_at_once(ctx: CheckContext) -> None:
    """Makes two calls at the same time, and compares with the same calls one after the other, in both orders."""
    budget, kind = ctx.budget(_BUDGET), ctx.loaded.module_type
    for number in range(1 if ctx.loaded.starts_processes else _MOST_PAIRS):
        async with ctx.mount() as mounted:
            pair = _pair(mounted, number)
        if pair is None or budget.is_spent():
            return
        problem = await _disturbance(ctx, number)
        if problem is not None:
            clause = "H5" if "'modify'" in problem else _CLAUSES[kind]
            what = f"two calls at the same time, {pair[0].name}: {problem}"
            ctx.fault(clause, what, given=[each.given for each in pair])
            return


async def _disturbance(ctx: CheckContext, number: int) -> str | None:
    orders = [await _in_turn(ctx, number, swapped) for swapped in (False, True)]
    if ctx.loaded.module_type == "hook" and not all(_MARKS[at] in orders[0][:2][at].text for at in range(2)):
        return None  # the results do not show which event they are about
    is_steady = _equal(await _in_turn(ctx, number), orders[0])
    for head_start in _HEAD_STARTS:
        async with ctx.mount() as mounted:
            mounted.suspend_at("llm:request", "llm:response")
            together = await _at_once(mounted, number, head_start)
        problem = _wrong_result(orders, together, is_steady) or (_wrong_state(orders, together) if is_steady else None)
        if ctx.loaded.module_type == "provider":
            problem = problem or _wrong_answer([*orders, together])
        if problem is not None and (not is_steady or await _is_deterministic(ctx, number, orders[0])):
            return problem
    return None


def _equal(one: _Run, other: _Run) -> bool:
    return _same([*one[:2], *one[2]], [*other[:2], *other[2]])


async def _is_deterministic(ctx: CheckContext, number: int, usual: _Run) -> bool:
    """Whether slower calls show the same: a result may depend on the time or on chance."""
    return all([_equal(await _in_turn(ctx, number, pause=pause), usual) for pause in _PAUSES])


async def _in_turn(ctx: CheckContext, number: int, swapped: bool = False, pause: float = 0.0) -> _Run:
    async with ctx.mount() as mounted:
        pair = _pair(mounted, number) or ()
        answers: dict[int, Answer] = {}
        for index in (1, 0) if swapped else (0, 1):
            await anyio.sleep(pause)
            answers[index] = await _answer(mounted, pair[index])
        return answers[0], answers[1], await _state(mounted)


async def _at_once(mounted: MountedModule, number: int, head_start: int) -> _Run:
    pair = _pair(mounted, number) or ()
    outcomes = await _run_concurrently(mounted, pair, head_start)
    first, second = (Scene(mounted).answer(*each) for each in zip(pair, outcomes, strict=True))
    return first, second, await _state(mounted)


async def _run_concurrently(
    mounted: MountedModule, pair: Sequence[Operation], head_start: int, *, cancel_after: int | None = None
) -> list[Outcome]:
    """Make both calls at the same time, with so many steps of the loop between the two starts, and cancel the first so many steps later."""
    outcomes = [Outcome(kind="late"), Outcome(kind="late")]
    scopes = [anyio.CancelScope(), anyio.CancelScope()]

    async def run(index: int) -> None:
        with scopes[index]:
            outcomes[index] = await _call(mounted, pair[index])

    with mounted.ctx.watchdog(_SECONDS * 2 + CANCEL_GRACE, "A8", "two calls at once"):
        async with anyio.create_task_group() as group:
            group.start_soon(run, 0)
            for _ in range(head_start):
                await anyio.lowlevel.checkpoint()
            group.start_soon(run, 1)
            if cancel_after is not None:
                for _ in range(cancel_after):
                    await anyio.lowlevel.checkpoint()
                scopes[0].cancel()
    return outcomes


async def _state(mounted: MountedModule) -> list[Answer]:
    """What typical calls of a tool give now, and which ids a provider has given to several calls."""
    if mounted.loaded.module_type == "provider":
        again = sorted({each for each in mounted.call_ids if mounted.call_ids.count(each) > 1})
        text = f"the ids {again} twice"
        return [Answer("ids", None, text, "worked", {"": text})]
    if mounted.loaded.module_type != "tool":
        return []
    return [await _answer(mounted, each) for each in typical_operations(mounted)]


async def _call(mounted: MountedModule, operation: Operation) -> Outcome:
    outcome = await call_with_deadline(operation.run, mounted, seconds=_SECONDS)
    mounted.note_success(outcome)
    return outcome


async def _answer(mounted: MountedModule, operation: Operation) -> Answer:
    return Scene(mounted).answer(operation, await _call(mounted, operation))


def _wrong_result(orders: list[_Run], together: _Run, is_steady: bool) -> str | None:
    is_stateless = _same(orders[0][:2], orders[1][:2])
    for index in range(2):
        got, usual, other = (run[:2][index] for run in (together, *orders))
        if not got.is_good or not usual.is_good:
            continue  # a refusal does not count: it may be busy
        if all(_MARKS[index] in each.text for each in (usual, other)) and _has_swapped(index, got.text):
            return f"one got the result of the other, {got.text[:150]}"
        if is_steady and is_stateless and not _same([got], [usual]):
            return f"one got {got.text[:150]}, and {usual.text[:150]} when it was made alone"
    return None


def _same(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Whether answers are the same but for figures about the calls themselves, such as how long they took."""
    return [(each.ending, each.leaves) for each in one] == [(each.ending, each.leaves) for each in other]


def _wrong_answer(runs: list[_Run]) -> str | None:
    """What is wrong with answers of a provider, which may neither be busy nor remember what others have asked."""
    if any(_MARKS[1 - index] in run[:2][index].text for run in runs for index in range(2)):
        return "the answer to one holds a word of the other"
    *orders, together = ([each.is_good for each in run[:2]] for run in runs)
    return "one of them failed" if not all(together) and all(map(all, orders)) else None


def _has_swapped(index: int, text: str) -> bool:
    """Whether the result of one of the two calls holds the mark of the other one instead of its own."""
    return _MARKS[index] not in text and _MARKS[1 - index] in text


def _wrong_state(orders: list[_Run], together: _Run) -> str | None:
    results = [*together[:2], *orders[0][:2], *orders[1][:2]]
    if not all(each.is_good for each in results) or any(_same(together[2], order[2]) for order in orders):
        return None
    left, usual = next(
        pair for pair in zip(together[2], orders[0][2], strict=True) if not _same(*([each] for each in pair))
    )
    return f"afterwards it shows {left.text[:150]}, which is what no order of the two leaves ({usual.text[:150]})"


@check("A9", kind="cancellation", types=("tool",), needs_success=("A9",))
async def spares_the_neighbour(ctx: CheckContext) -> None:
    """Makes the same call twice at the same time and cancels the first; the second must return as usual."""
    budget = ctx.budget(_BUDGET)
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)[: 1 if ctx.loaded.starts_processes else _MOST_PAIRS]
    for operation in operations:
        async with ctx.mount() as mounted:
            if budget.is_spent() or not (await _call(mounted, operation)).returned:
                continue
        for steps in _HEAD_STARTS:
            async with ctx.mount() as mounted:
                _, second = await _run_concurrently(mounted, [operation] * 2, 1, cancel_after=steps + 1)
            if not second.returned:
                what = f"two equal calls at the same time, {operation.name}, of which the first was cancelled"
                ctx.fault("A9", f"{what}: the second {second}", given=operation.given, error=second.error)
                return
