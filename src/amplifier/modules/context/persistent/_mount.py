"""Mounts a persistent context, and closes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier.contracts import Coordinator
from amplifier.events import TOOL_ERROR, TOOL_POST

from ._context import PersistentContext
from ._options import read_persistent_options


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]]:
    """Open the session's conversation and mount it; see `PersistentOptions` for its configuration.

    Returns:
        The function that closes it.
    """
    options = read_persistent_options(coordinator.session_id, config)
    context = PersistentContext(options, coordinator.hooks, coordinator)
    try:
        await context.open()
        await coordinator.mount("context", context)
        coordinator.turn_number = context.turn_number
        context.observe(coordinator, "context-persistent")
        if context.journal is not None:
            coordinator.register_step_wrapper(context.journal)
            for event in (TOOL_POST, TOOL_ERROR):
                coordinator.hooks.register(
                    event, context.journal.watch, name="context-persistent", fields=("tool_call_id",)
                )
    except BaseException:
        await context.close()
        raise
    return context.close
