"""Compares the outcomes of typical operations on asyncio and trio."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio.to_thread
import attrs

from amplifier.conformance.harness.calls.outcome import Outcome
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.harness.virtual_clock import run_virtually


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
