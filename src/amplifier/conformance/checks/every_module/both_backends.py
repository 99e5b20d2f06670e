"""The same use on both backends. Above stands the check; below stands the mounted."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import attrs

from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import typical_operations

_OTHER = {"trio": "asyncio", "asyncio": "trio"}


async def compare_backends(ctx: CheckContext) -> None:
    """On trio, compare with asyncio; on asyncio there is nothing to do, since one comparison is enough."""
    if set(ctx.loaded.backends) != set(_OTHER):
        return  # it declares what it runs on, which is all that is asked of it
    if ctx.backend != "trio":
        ctx.coverage.backends.clear()  # nothing is shown by this
        return
    ctx.coverage.backends.add("asyncio")
    here = await _endings(ctx)
    other = attrs.evolve(ctx, backend="asyncio", faults=[], notes=[], abort=None)

    def run_there() -> list[tuple[str, Any, str]]:
        return anyio.run(_endings, other, backend="asyncio")

    there = await anyio.to_thread.run_sync(run_there)
    for (name, given, on_trio), (_, _, on_asyncio) in zip(here, there, strict=False):
        if on_trio != on_asyncio:
            ctx.fault("A18", f"{name} {on_trio} on trio and {on_asyncio} on asyncio", given=given)
            return


async def _endings(ctx: CheckContext) -> list[tuple[str, Any, str]]:
    try:
        async with ctx.mount() as mounted:
            found = []
            for operation in typical_operations(mounted):
                outcome = await mounted.call(operation.run, mounted)
                ending = (
                    f"raised {type(outcome.error).__name__}" if outcome.error is not None else _ending(outcome.value)
                )
                found.append((operation.name, operation.given, ending if outcome.kind != "late" else "did not end"))
            return found
    except MountFailed as failed:
        return [("mount", None, str(failed.outcome))]


def _ending(value: Any) -> str:
    """A tool may return its failure; everything else that returns has worked."""
    if isinstance(value, list) and value and value[0] is False:
        return "failed"
    return "worked"
