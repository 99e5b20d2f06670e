"""Choose inputs of tools by their answers, so that a change is followed by a call that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amplifier.conformance.inputs.json_schema import fingerprint
from amplifier.conformance.inputs.values import Input
from amplifier.conformance.inputs.varied import VariedInputs
from amplifier.conformance.target.calls import Budget
from amplifier.conformance.target.mounted import CANARY, CheckContext, MountedModule
from amplifier.conformance.target.source import choices_in
from amplifier.conformance.target.use import execute, schema_of, sought_texts

# The checks that repeat each call many times need a few telling inputs out of many drawn ones. A
# writer is an input with an answer that holds the most that no other answer holds. A reader is an
# input that is answered differently after the writers were called. This needs only the schema.

_DRAWN = 100
_ASKED_ALONE = 32
_SECONDS = 1.5
_MAX_WRITERS = 3
_MAX_READERS = 3
_CALLS = 1_200
"""Maximum number of calls for all tools of a module."""
_MAX_TOOLS = 4
_MAX_LEAF_LENGTH = 80
_MAX_ITEMS = 8

_Leaves = frozenset[tuple[str, str]]


async def choose_inputs(ctx: CheckContext) -> dict[str, tuple[Input, ...]]:
    """Return a few inputs of each tool, or none of a tool that has no schema or accepts none."""
    async with ctx.mount() as mounted:
        schemas = {name: schema_of(tool) for name, tool in mounted.instances.items()}
    budget = ctx.budget(_CALLS)
    inputs: dict[str, tuple[Input, ...]] = {}
    for name, schema in list(schemas.items())[:_MAX_TOOLS]:
        if schema and not budget.is_spent():
            drawn = VariedInputs(
                schema,
                CANARY,
                words=choices_in(ctx.loaded.target),
                texts=sought_texts(ctx.loaded),
                seed=ctx.seed,
            ).draw(_DRAWN // min(len(schemas), _MAX_TOOLS))
            chosen = await _chosen(ctx, name, drawn, budget)
            limit = max(1, (_MAX_WRITERS + _MAX_READERS) // len(schemas))
            inputs[name] = tuple(chosen[:limit])
    return inputs


async def _chosen(
    ctx: CheckContext, name: str, drawn: Sequence[Input], budget: Budget
) -> list[Input]:
    """Return a writer, a reader, and then the other writers and readers."""
    async with ctx.mount() as mounted:
        accepted = [
            given
            for given in drawn
            if not budget.is_spent() and await _leaves(mounted, name, given) is not None
        ]
    alone: list[tuple[Input, _Leaves]] = []
    for given in accepted[:_ASKED_ALONE]:
        async with ctx.mount() as mounted:
            leaves = await _leaves(mounted, name, given)
        if leaves is not None and not budget.is_spent():
            alone.append((given, leaves))
    writers = _most_telling(alone, _MAX_WRITERS)
    changed: list[tuple[Input, _Leaves]] = []
    for given, before in alone:
        if budget.is_spent():
            break
        async with ctx.mount() as mounted:
            for writer in writers:
                await _leaves(mounted, name, writer)
            after = await _leaves(mounted, name, given)
        if after is not None and after - before:
            changed.append((given, after - before))
    readers = [given for given in _most_telling(changed, _MAX_READERS) if given not in writers]
    return [*writers[:1], *readers[:1], *writers[1:], *readers[1:]]


def _most_telling(answers: Sequence[tuple[Input, _Leaves]], limit: int) -> list[Input]:
    """Return the inputs with the most new leaves in their answers, and the shortest of equal ones.

    A leaf is new if no answer to an earlier input has it.
    """
    left = sorted(answers, key=lambda pair: len(fingerprint(pair[0])))
    seen: set[tuple[str, str]] = set()
    inputs: list[Input] = []
    while left and len(inputs) < limit:
        given, leaves = max(left, key=lambda pair: len(pair[1] - seen))
        if not leaves - seen:
            break
        inputs.append(given)
        seen |= leaves
        left.remove((given, leaves))
    return inputs


async def _leaves(mounted: MountedModule, name: str, given: Input) -> _Leaves | None:
    """Return the parts of a successful answer with their places, or None for any other outcome."""
    outcome = await mounted.call(execute, name, given, mounted, seconds=_SECONDS)
    if not outcome.returned or outcome.value[0] is not True:
        return None
    return frozenset(_parts(outcome.value[1], ""))


def _parts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _parts(member, f"{place}/{key}")
    elif isinstance(value, list):
        yield place, f"{min(len(value), _MAX_ITEMS)} items"
        for number, member in enumerate(value[:_MAX_ITEMS]):
            yield from _parts(member, f"{place}/{number}")
    else:
        yield place, repr(value)[:_MAX_LEAF_LENGTH]
