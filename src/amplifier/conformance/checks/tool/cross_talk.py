"""Detects cross-talk between concurrent tool calls.

The same two calls are made one after the other in both orders, and concurrently, each time in a new session. A tool may
remember, count and refuse; so concurrent calls are compared with both orders, and only where the tool is deterministic.
"""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

import anyio
import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint, resolved
from amplifier.conformance.inputs.tool_inputs import sample_inputs
from amplifier.conformance.inputs.values import kinds_of, properties_of
from amplifier.conformance.oracles.calls import HEAD_STARTS, MARKS, has_swapped, run_concurrently
from amplifier.conformance.target.calls import Outcome, call_with_deadline
from amplifier.conformance.target.literals import choices_in, inputs_in
from amplifier.conformance.target.mounted import CANARY, CheckContext, MountedModule
from amplifier.conformance.target.use import schema_of
from amplifier.models import ToolResult

Input = dict[str, Any]

_NUMBERS = (3, 8)
_MAX_SAMPLES = 5
_SECONDS = 3.0
_BUDGET = 2_000
"""Calls of each check in the quick profile."""
_PAUSES = (0.0, 0.013, 0.04)
_ABOUT_TIME = re.compile(
    r"time|elapsed|duration|took|second|_ms|latency|wait|queue|active|flight|running|concurren|since|\bage\b|_age|uptime|expires"
)


@attrs.frozen
class _Pair:
    """Two calls of one tool that differ wherever the schema lets them, and calls that show the tool's state."""

    tool: str
    inputs: tuple[Input, Input]
    probes: list[Input]
    rank: int = 0


@check("T10", kind="behaviour", types=("tool",), needs_success=("T10",))
async def keeps_calls_apart(ctx: CheckContext) -> None:
    """Makes two calls at the same time, and compares with the same calls one after the other, in both orders."""
    budget = ctx.budget(_BUDGET)
    for pair in sorted(await _pairs(ctx), key=lambda each: each.rank):  # the first of each tool first
        if budget.is_spent() or await _is_disturbed(ctx, pair):
            return


async def _pairs(ctx: CheckContext) -> list[_Pair]:
    target = ctx.loaded.target
    pairs: list[_Pair] = []
    async with ctx.mount() as mounted:
        for name, tool in mounted.instances.items():
            schema = schema_of(tool)
            samples = sample_inputs(schema, CANARY, words=inputs_in(target), choices=choices_in(target))
            samples = samples[: 1 if ctx.loaded.starts_processes else _MAX_SAMPLES]
            accepts = acceptor(schema)
            for rank, base in enumerate(samples):
                inputs = _marked(base, schema, accepts, 0), _marked(base, schema, accepts, 1)
                pairs.append(_Pair(name, inputs, samples, rank))
    return pairs


def _marked(base: Input, schema: Any, accepts: Accepts | None, index: int) -> Input:
    """An input with a mark in every text and another number in every number, as far as the schema accepts it."""
    found = dict(base)
    parts = properties_of(resolved(schema, schema)) if schema else {}
    for key, value in base.items():
        part = resolved(parts.get(key, {}), schema)
        changed: Any = value
        if isinstance(value, str) and "enum" not in part and value != CANARY and kinds_of(part) == ["string"]:
            changed = f"{MARKS[index]} {key}"
        elif isinstance(value, int) and not isinstance(value, bool):
            changed = _NUMBERS[index]
        elif isinstance(value, list) and value:
            changed = [_NUMBERS[index] if type(each) is int else each for each in value * (index + 1)]
            changed = [f"{MARKS[index]} {key}" if isinstance(each, str) else each for each in changed]
        if accepts is None or accepts({**found, key: changed}):
            found[key] = changed
    return found


# ── the experiments ──

_Run = tuple[str | None, str | None, str]
"""The result of the first call, of the second call, and the state afterwards; None for no result."""


async def _is_disturbed(ctx: CheckContext, pair: _Pair) -> bool:
    orders = [await _run_in_turn(ctx, pair, swapped) for swapped in (False, True)]
    if None in orders[0][:2] or None in orders[1][:2]:
        return False
    is_steady = await _run_in_turn(ctx, pair) == orders[0]
    is_stateless = orders[0][:2] == orders[1][:2]
    for head_start in HEAD_STARTS:
        async with ctx.mount() as mounted:
            outcomes = await _run_pair(mounted, pair.tool, pair.inputs, head_start)
            first, second = (_shown(outcome, mounted) for outcome in outcomes)
            together = first, second, await _state(mounted, pair)
        problem = _wrong_result(orders, together, is_steady and is_stateless)
        if problem is None and is_steady:
            problem = _wrong_state(orders, together)
        if problem is not None and (not is_steady or await _is_deterministic(ctx, pair, orders[0])):
            what = f"two calls of {pair.tool!r} at the same time: {problem}"
            ctx.fault("T10", what, given={"tool": pair.tool, "inputs": list(pair.inputs)})
            return True
    return False


async def _is_deterministic(ctx: CheckContext, pair: _Pair, usual: _Run) -> bool:
    """Whether slower calls show the same: a result may depend on the time or on chance."""
    return all([await _run_in_turn(ctx, pair, pause=pause) == usual for pause in _PAUSES])


async def _run_in_turn(ctx: CheckContext, pair: _Pair, swapped: bool = False, pause: float = 0.0) -> _Run:
    shown: list[str | None] = [None, None]
    async with ctx.mount() as mounted:
        for index in (1, 0) if swapped else (0, 1):
            await anyio.sleep(pause)
            shown[index] = _shown(await _execute(mounted, pair.tool, pair.inputs[index]), mounted)
        return shown[0], shown[1], await _state(mounted, pair)


async def _state(mounted: MountedModule, pair: _Pair) -> str:
    return fingerprint([_shown(await _execute(mounted, pair.tool, probe), mounted) for probe in pair.probes])


async def _run_pair(
    mounted: MountedModule, tool: str, inputs: tuple[Input, Input], head_start: int, *, cancel_first: bool = False
) -> list[Outcome]:
    calls = partial(_execute, mounted, tool, inputs[0]), partial(_execute, mounted, tool, inputs[1])
    what = f"the tool {tool!r}"
    return await run_concurrently(
        mounted.ctx, calls, head_start, what=what, seconds=_SECONDS, cancel_first=cancel_first
    )


async def _execute(mounted: MountedModule, tool: str, given: Input) -> Outcome:
    outcome = await call_with_deadline(mounted.instances[tool].execute, copy.deepcopy(given), seconds=_SECONDS)
    mounted.note_success(outcome)
    return outcome


def _shown(outcome: Outcome, mounted: MountedModule) -> str | None:
    """A result as text without session, directories and times."""
    result = outcome.value
    if not outcome.returned or not isinstance(result, ToolResult):
        return None
    return mounted.without_session(fingerprint([result.success, _timeless(result.output), _timeless(result.error)]))


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


def _wrong_result(orders: list[_Run], together: _Run, is_predictable: bool) -> str | None:
    for index, got in enumerate(together[:2]):
        if got is None:
            continue
        if all(MARKS[index] in str(order[index]) for order in orders) and has_swapped(index, got):
            return f"one got the result of the other, {got[:150]}"
        usual = str(orders[0][index])
        # A refusal does not count: a tool may be busy.
        if is_predictable and got != usual and got.startswith("[true"):
            return f"one got {got[:150]}, and {usual[:150]} when it was made alone"
    return None


def _wrong_state(orders: list[_Run], together: _Run) -> str | None:
    results = [*together[:2], *orders[0][:2], *orders[1][:2]]
    if not all(str(result).startswith("[true") for result in results) or together[2] in (orders[0][2], orders[1][2]):
        return None
    left, usual = together[2][:150], orders[0][2][:150]
    return f"afterwards the tool shows {left}, which is what no order of the two leaves ({usual})"


@check("A9", kind="cancellation", types=("tool",), needs_success=("A9",))
async def spares_the_neighbour(ctx: CheckContext) -> None:
    """Makes the same call twice at the same time and cancels the first; the second must return as usual."""
    budget = ctx.budget(_BUDGET)
    for pair in await _pairs(ctx):
        if budget.is_spent():
            return
        given = pair.inputs[0]
        async with ctx.mount() as mounted:
            alone = await _execute(mounted, pair.tool, given)
        if not alone.returned:
            continue
        for head_start in HEAD_STARTS:
            async with ctx.mount() as mounted:
                _, survivor = await _run_pair(mounted, pair.tool, (given, given), head_start, cancel_first=True)
            if not survivor.returned:
                what = f"two equal calls of {pair.tool!r} at the same time, of which the first was cancelled"
                shown = {"tool": pair.tool, "input": given}
                ctx.fault("A9", f"{what}: the second {survivor}", given=shown, error=survivor.error)
                return
