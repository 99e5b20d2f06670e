"""Calls of a tool beside each other: whose result does each of them get, and what is left of what they did.

The same two calls are made alone, one after the other in both orders, and beside each other, each time in a new session. A
tool may remember, count and refuse; so calls beside each other are compared with both orders, and only where the tool does
the same every time. Above stand the checks of T10 and A9; below stands the mounted.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier.conformance.harness.mounted_module import (
    CANARY,
    CANCEL_GRACE,
    CheckContext,
    MountedModule,
    Outcome,
    call_with_deadline,
)
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint, resolved
from amplifier.conformance.inputs.sample_calls import sample_inputs
from amplifier.conformance.inputs.schema_values import kinds_of, properties_of
from amplifier.conformance.target.source_literals import choices_in, inputs_in
from amplifier.models import ToolResult

Input = dict[str, Any]

_MARKS = ("alphamark", "bravomark")
_NUMBERS = (3, 8)
_BASES = 5
_HEAD_STARTS = (0, 1, 3)
_SECONDS = 3.0
_PAUSES = (0.0, 0.013, 0.04)
_ABOUT_TIME = re.compile(
    r"time|elapsed|duration|took|second|_ms|latency|wait|queue|active|flight|running|concurren|since|\bage\b|_age|uptime|expires"
)


@attrs.frozen
class Pair:
    """Two calls of one tool that differ wherever the schema lets them."""

    tool: str
    first: Input
    second: Input
    rank: int = 0


async def look_for_mixing(ctx: CheckContext, budget: Budget) -> None:
    """Report the first pair of calls that disturb each other."""
    pairs, probes = await _pairs(ctx)
    for pair in sorted(pairs, key=lambda each: each.rank):  # the first of each tool first
        if budget.is_spent() or await _disturbed(ctx, pair, probes[pair.tool]):
            return


async def _pairs(ctx: CheckContext) -> tuple[list[Pair], dict[str, list[Input]]]:
    subject = ctx.loaded.subject
    pairs: list[Pair] = []
    probes: dict[str, list[Input]] = {}
    async with ctx.mount() as mounted:
        for name, tool in mounted.instances.items():
            schema = schema_of(tool)
            words = inputs_in(subject)
            samples = sample_inputs(schema, CANARY, words=words, choices=choices_in(subject))[:_BASES]
            accepts = acceptor(schema)
            probes[name] = samples
            for rank, base in enumerate(samples):
                first, second = (_marked(base, schema, accepts, index) for index in (0, 1))
                pairs.append(Pair(name, first, second, rank))
    return pairs, probes


def _marked(base: Input, schema: Any, accepts: Accepts | None, index: int) -> Input:
    """An input with a mark in every text and another number in every number, as far as the schema accepts it."""
    found = dict(base)
    parts = properties_of(resolved(schema, schema)) if schema else {}
    for key, value in base.items():
        part = resolved(parts.get(key, {}), schema)
        changed: Any = value
        if isinstance(value, str) and "enum" not in part and value != CANARY and kinds_of(part) == ["string"]:
            changed = f"{_MARKS[index]} {key}"
        elif isinstance(value, int) and not isinstance(value, bool):
            changed = _NUMBERS[index]
        elif isinstance(value, list) and value:
            changed = [_NUMBERS[index] if type(each) is int else each for each in value * (index + 1)]
            changed = [f"{_MARKS[index]} {key}" if isinstance(each, str) else each for each in changed]
        if accepts is None or accepts({**found, key: changed}):
            found[key] = changed
    return found


# ── the experiments ──


async def _disturbed(ctx: CheckContext, pair: Pair, probes: list[Input]) -> bool:
    orders = [await _after_each_other(ctx, pair, probes, swapped) for swapped in (False, True)]
    if not all(result is not None for order in orders for result in order[:2]):
        return False
    again = await _after_each_other(ctx, pair, probes, False)
    is_steady = again == orders[0]
    is_stateless = orders[0][:2] == orders[1][:2]
    for head_start in _HEAD_STARTS:
        beside = await _beside_each_other(ctx, pair, probes, head_start)
        complaint = _complaint(pair, orders, beside, is_steady and is_stateless) or (
            _lost(orders, beside) if is_steady else None
        )
        if complaint is not None and (not is_steady or await _is_always_so(ctx, pair, probes, orders[0])):
            what = f"two calls of {pair.tool!r} at the same time: {complaint}"
            ctx.fault("T10", what, given={"tool": pair.tool, "inputs": [pair.first, pair.second]})
            return True
    return False


async def _is_always_so(ctx: CheckContext, pair: Pair, probes: list[Input], usual: Run) -> bool:
    """Whether the calls show the same, made slowly, whenever they are made: an answer may depend on the time or on chance."""
    return all([await _after_each_other(ctx, pair, probes, False, pause) == usual for pause in _PAUSES])


Run = tuple[str | None, str | None, str]
"""What the first call gave, what the second gave, and what is seen of both afterwards; None for no result."""


async def _after_each_other(
    ctx: CheckContext, pair: Pair, probes: list[Input], swapped: bool, pause: float = 0.0
) -> Run:
    async with ctx.mount() as mounted:
        calls = (pair.second, pair.first) if swapped else (pair.first, pair.second)
        shown = []
        for given in calls:
            await anyio.sleep(pause)
            shown.append(_shown(await _execute(mounted, pair.tool, given), mounted))
        one, other = shown
        left = await _left(mounted, pair.tool, probes)
    return (other, one, left) if swapped else (one, other, left)


async def _beside_each_other(ctx: CheckContext, pair: Pair, probes: list[Input], head_start: int) -> Run:
    outcomes: dict[int, Outcome] = {}

    async def call(index: int, given: Input) -> None:
        outcomes[index] = await _execute(mounted, pair.tool, given)

    async with ctx.mount() as mounted:
        with ctx.alarm(_SECONDS * 2 + CANCEL_GRACE, "A8", f"the tool {pair.tool!r}"):
            async with anyio.create_task_group() as group:
                group.start_soon(call, 0, pair.first)
                for _ in range(head_start):
                    await anyio.lowlevel.checkpoint()
                group.start_soon(call, 1, pair.second)
        one, other = (_shown(outcomes[index], mounted) for index in (0, 1))
        return one, other, await _left(mounted, pair.tool, probes)


async def _left(mounted: MountedModule, tool: str, probes: list[Input]) -> str:
    shown = [_shown(await _execute(mounted, tool, probe), mounted) for probe in probes]
    return fingerprint(shown)


async def _execute(mounted: MountedModule, tool: str, given: Input) -> Outcome:
    return await call_with_deadline(mounted.instances[tool].execute, copy.deepcopy(given), seconds=_SECONDS)


def _shown(outcome: Outcome, mounted: MountedModule) -> str | None:
    """A result as text in which nothing names the session, its place or the time."""
    result = outcome.value
    if not outcome.returned or not isinstance(result, ToolResult):
        return None
    text = fingerprint([result.success, _timeless(result.output), _timeless(result.error)])
    return text.replace(mounted.session.session_id, "<session>").replace(str(mounted.directory.parent), "<place>")


def _timeless(value: Any, depth: int = 0) -> Any:
    if depth > 20:
        return repr(value)
    if isinstance(value, dict):
        return {
            key: _timeless(member, depth + 1)
            for key, member in value.items()
            if not (isinstance(member, (int, float)) and _ABOUT_TIME.search(str(key).lower()))
        }
    return [_timeless(member, depth + 1) for member in value] if isinstance(value, (list, tuple)) else value


# ── the judgement ──


def _complaint(pair: Pair, orders: list[Run], beside: Run, is_predictable: bool) -> str | None:
    for index, (mark, other) in enumerate((_MARKS, _MARKS[::-1])):
        got = beside[index]
        if got is None:
            continue
        always = all(mark in str(order[index]) for order in orders)
        if always and mark not in got and other in got:
            return f"one got the result of the other, {got[:150]}"
        usual = str(orders[0][index])
        # A refusal is another matter: a tool may be busy.
        if is_predictable and got != usual and got.startswith("[true"):
            return f"one got {got[:150]}, and {usual[:150]} when it was made alone"
    return None


def _lost(orders: list[Run], beside: Run) -> str | None:
    taken = all(result is not None and result.startswith("[true") for result in beside[:2])
    usual = all(str(result).startswith("[true") for order in orders for result in order[:2])
    if not taken or not usual or beside[2] in {order[2] for order in orders}:
        return None
    return (
        f"afterwards the tool shows {beside[2][:150]}, which is what no order of the two leaves ({orders[0][2][:150]})"
    )


# ── a neighbour that is cancelled ──


async def cancel_neighbours(ctx: CheckContext, budget: Budget) -> None:
    """Make the same call twice at the same time and cancel the first: the second goes on as if it were alone."""
    pairs, _ = await _pairs(ctx)
    for pair in pairs:
        if budget.is_spent():
            return
        async with ctx.mount() as mounted:
            alone = await _execute(mounted, pair.tool, pair.first)
        if not alone.returned or alone.seconds > 1:
            continue
        for head_start in _HEAD_STARTS:
            async with ctx.mount() as mounted:
                with ctx.alarm(_SECONDS * 2 + CANCEL_GRACE, "A8", f"the tool {pair.tool!r}"):
                    survivor = await _beside_a_cancelled_one(mounted, pair, head_start)
            if survivor.returned != alone.returned:
                what = f"two equal calls of {pair.tool!r} at the same time, of which the first was cancelled: the second {survivor}"
                ctx.fault("A9", what, given={"tool": pair.tool, "input": pair.first}, error=survivor.error)
                return


async def _beside_a_cancelled_one(mounted: MountedModule, pair: Pair, head_start: int) -> Outcome:
    outcomes: list[Outcome] = []

    async def survive() -> None:
        outcomes.append(await _execute(mounted, pair.tool, pair.first))

    async def be_cancelled(scope: anyio.CancelScope) -> None:
        with scope:
            await _execute(mounted, pair.tool, pair.first)

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(be_cancelled, scope)
        await anyio.lowlevel.checkpoint()
        group.start_soon(survive)
        for _ in range(head_start + 1):
            await anyio.lowlevel.checkpoint()
        scope.cancel()
    return outcomes[0]
