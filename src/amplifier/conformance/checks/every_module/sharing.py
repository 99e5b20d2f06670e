"""Compares results: of sessions in one process, which must not depend on each other, and of both backends.

The same calls are made in a first session and, while that is open, in a second one of the same user in another directory.
Calls that the first one did not make are made in a third session, and by themselves in a freshly imported module. If results
differ from those of a fresh module, in the same way each time, then the sessions share state.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio.to_thread
import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.calls import first_difference
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.locate import LoadedTarget, load_anew
from amplifier.conformance.target.mounted import CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.use import Operation, other_operations, typical_operations
from amplifier.conformance.target.virtual_clock import run_virtually

_ROUNDS = 12
"""How often the calls are made, as shared counters may show late; once by a module that starts processes."""
_PAIRS = 3
"""How often a difference has to show in the same way: results may differ by chance."""
_TEMPORARY_NAME = re.compile(r"0000\d{4}")
"""Names of new temporary files: here they are numbered, elsewhere they are drawn at random."""

_Result = tuple[str, Any, str]
"""An operation's name, its input and what it returned."""
_Pair = tuple[list[_Result], list[_Result]]
"""The results of a fresh module, and of the same calls in a session that is not the first one."""


@check("A16", kind="hygiene")
async def shares_nothing(ctx: CheckContext) -> None:
    """Makes the same calls, and others, in several sessions at once; each gets the results that a new process would get."""
    for config in ctx.configs:
        sessions = _Sessions(ctx, attrs.evolve(ctx.loaded, config=config))
        for compare in (sessions.with_same_calls, sessions.with_other_calls):
            await _report_difference(ctx, compare)
            if ctx.faults:
                return


async def _report_difference(ctx: CheckContext, compare: Callable[[], Awaitable[_Pair]]) -> None:
    pairs = [await compare()]
    while len(pairs) < _PAIRS and pairs[-1][0] != pairs[-1][1]:
        pairs.append(await compare())
    alone, beside = pairs[0]
    if len(pairs) < _PAIRS or any(pair != pairs[0] for pair in pairs):
        return  # they share nothing, or it is not deterministic, so nothing follows
    for (name, given, usual), (_, _, other) in zip(alone, beside, strict=False):
        if usual != other:
            shown = first_difference(usual, other)
            ctx.fault(
                "A16", f"because a first session had been there, in a second one {name} gave {shown}", given=given
            )
            return


class _Sessions:
    """Sessions of one module with one configuration; every comparison imports the module anew."""

    def __init__(self, ctx: CheckContext, loaded: LoadedTarget) -> None:
        self._ctx = ctx
        self._loaded = loaded
        self._rounds = 1 if loaded.starts_processes else _ROUNDS

    def _fresh(self) -> CheckContext:
        return attrs.evolve(self._ctx.fresh(), loaded=load_anew(self._loaded))

    async def with_same_calls(self) -> _Pair:
        """Typical calls in a first session, and once more in a second one."""
        fresh = self._fresh()
        async with fresh.mount() as first:
            alone = await _results(first, _lasting(first) * self._rounds)
            async with fresh.mount(neighbour=first) as second:
                return alone, await _results(second, _lasting(second) * self._rounds, first)

    async def with_other_calls(self) -> _Pair:
        """Other calls in a first session, and in one beside a session in which the typical calls were made."""
        if self._rounds == 1:
            return [], []  # its calls take too long
        async with self._fresh().mount() as only:
            alone = await _results(only, other_operations(only))
        fresh = self._fresh()
        async with fresh.mount() as first:
            await _results(first, _lasting(first) if alone else [])
            async with fresh.mount(neighbour=first) as second:
                return alone, await _results(second, other_operations(second), first)


def _lasting(mounted: MountedModule) -> list[Operation]:
    """The typical operations without those that end a session: all sessions have to be active."""
    return [each for each in typical_operations(mounted) if not each.is_last]


async def _results(
    mounted: MountedModule, operations: list[Operation], neighbour: MountedModule | None = None
) -> list[_Result]:
    found = []
    for operation in operations:
        outcome = await mounted.call(operation.run, mounted)
        value = outcome.value if outcome.returned else type(outcome.error).__name__
        text = mounted.without_session(repr(value))
        if neighbour is not None:  # home and temporary files are the same for both
            for folder in (neighbour.directory.parent / "home", neighbour.temporary):
                text = text.replace(str(folder), f"<place>/{folder.name}")
            text = text.replace(str(neighbour.directory.parent), "<place of another session>")
        found.append((operation.name, operation.given, _TEMPORARY_NAME.sub("<new name>", text)))
    return found


@check("A18", kind="hygiene")
async def runs_on_both_backends(ctx: CheckContext) -> None:
    """Compares typical calls on both backends."""
    if set(ctx.loaded.backends) != {"asyncio", "trio"}:
        return  # it declares its backend, which is all that the clause demands
    if ctx.backend != "trio":  # one comparison is enough
        ctx.coverage.backends.clear()
        return
    ctx.coverage.backends.append("asyncio")
    first, again = await _differing(ctx), None
    if first is not None:
        again = await _differing(ctx)  # what is due to chance does not show twice in the same way
    if first is not None and first == again:
        name, given, here, there = first
        ctx.fault("A18", f"{name} {here} on trio and {there} on asyncio", given=given)


async def _differing(ctx: CheckContext) -> tuple[str, Any, str, str] | None:
    """The first operation that ends differently on the two backends: its name, its input and both endings."""
    on_trio = await _endings(ctx)
    other = attrs.evolve(ctx.fresh(), backend="asyncio", abort=None)
    on_asyncio = await anyio.to_thread.run_sync(partial(run_virtually, _endings, other, backend="asyncio"))
    for (name, given, here), (_, _, there) in zip(on_trio, on_asyncio, strict=False):
        if here != there:
            return name, given, here, there
    return None


async def _endings(ctx: CheckContext) -> list[tuple[str, Any, str]]:
    try:
        async with ctx.mount() as mounted:
            kind = mounted.loaded.module_type
            return [
                (operation.name, operation.given, _ending(await mounted.call(operation.run, mounted), kind))
                for operation in typical_operations(mounted)
            ]
    except MountFailed as failed:
        return [("mount", None, str(failed.outcome))]


def _ending(outcome: Outcome, kind: str) -> str:
    if outcome.kind == "late":
        return "did not end"
    if outcome.error is not None:
        return f"raised {type(outcome.error).__name__}"
    value = outcome.value
    if kind == "resolver":
        return "found nothing" if value is None else f"found {len(value['files'])} files"
    if kind == "hook" and isinstance(value, dict):
        return f"answered {value['action']}"
    return "failed" if isinstance(value, list) and value and value[0] is False else "worked"
