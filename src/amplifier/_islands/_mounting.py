"""The mount function of an asyncio-only module, for a session on trio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from amplifier.errors import ModuleLoadError

from ._island import Island
from ._residents import Manager


def mount_on_island(mount: Callable[..., Any], module_id: str) -> Callable[..., Any]:
    """A mount function with the same signature whose module lives on the island of the session it is mounted in.

    What it mounts, registers and returns is wrapped, so that the session uses it as it uses modules on trio.
    """

    @functools.wraps(mount)
    async def mounting(coordinator: Any, config: Any) -> Any:
        island = _island_of(coordinator, module_id)
        return island.border.called_by_kernel(await island.call(mount, island.border.for_island(coordinator), config))

    @functools.wraps(mount)
    def entering(coordinator: Any, config: Any) -> Any:
        island = _island_of(coordinator, module_id)
        answer = mount(island.border.for_island(coordinator), config)
        if hasattr(type(answer), "__aenter__") and hasattr(type(answer), "__aexit__"):  # a structured mount
            return Manager(island, island.call, answer, island.border.for_trio)
        return island.border.called_by_kernel(answer)

    return mounting if inspect.iscoroutinefunction(inspect.unwrap(mount)) else entering


def ready_on_island(on_session_ready: Callable[..., Any], module_id: str) -> Callable[..., Any]:
    """``on_session_ready`` of such a module."""

    @functools.wraps(on_session_ready)
    async def calling(coordinator: Any) -> Any:
        island = _island_of(coordinator, module_id)
        return await island.call(on_session_ready, island.border.for_island(coordinator))

    return calling


def _island_of(coordinator: Any, module_id: str) -> Island:
    """The island of a session, started if this is its first asyncio-only module."""
    island_of = getattr(coordinator, "asyncio_island", None)
    if island_of is None:
        raise ModuleLoadError(
            f"module {module_id!r} needs asyncio, and {coordinator!r} has no asyncio island to run it on in trio; mount it "
            "through a session or an amplifier.ModuleCoordinator, or run on asyncio",
            module_id=module_id,
            reason_code="mount_failed",
        )
    island: Island = island_of()
    return island
