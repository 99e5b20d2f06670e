"""Allows only so many tool calls at the same time; further ones are denied with the advice to try again.

Fault: a call is counted on `tool:pre` and taken off on `tool:post` alone; a call that ends with `tool:error` is never taken off, and
after a few failures every call is denied for the rest of the session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)


class ParallelLimit:
    """Keeps the ids of the calls under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[str] = set()

    @staticmethod
    def _key(data: dict[str, Any]) -> str | None:
        key = data.get("tool_call_id")
        return key if isinstance(key, str) else None

    async def before(self, event: str, data: dict[str, Any]) -> HookResult:
        key = self._key(data)
        if key is None or key in self._running:
            return HookResult(action="continue")
        if len(self._running) >= self._limit:
            logger.info("denied %s: %d calls are under way", data.get("tool_name"), len(self._running))
            return HookResult(action="deny", reason=f"{self._limit} calls are under way; call again when they are done")
        self._running.add(key)
        return HookResult(action="continue")

    async def after(self, event: str, data: dict[str, Any]) -> HookResult:
        key = self._key(data)
        if key is not None:
            self._running.discard(key)
        return HookResult(action="continue")


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Callable[[], None]:
    hook = ParallelLimit(int((config or {}).get("limit", 8)))
    undo = [
        coordinator.hooks.register("tool:pre", hook.before, priority=20, name="parallel-limit"),
        coordinator.hooks.register("tool:post", hook.after, priority=20, name="parallel-limit"),
    ]

    def cleanup() -> None:
        for each in undo:
            each()

    return cleanup
