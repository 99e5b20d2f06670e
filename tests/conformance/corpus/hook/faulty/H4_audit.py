"""Reports every event to an audit channel, so that applications can follow a session in one place.

Fault: the handler listens to every event and emits one itself, which it then hears again; each event starts a chain of audit events
that only the kernel's limit ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from amplifier import HookResult
from amplifier.contracts import Coordinator, Hooks

__amplifier_module_type__ = "hook"


class Audit:
    """Counts events and passes a short form of each on."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.counts: Counter[str] = Counter()

    async def on_event(self, event: str, data: dict[str, Any]) -> HookResult:
        self.counts[event] += 1
        if event.startswith("session:"):
            return HookResult(action="continue")
        entry = {"about": event, "number": self.counts[event], "keys": sorted(map(str, data))}
        await self._hooks.emit("audit:entry", entry)
        return HookResult(action="continue")


async def mount(coordinator: Coordinator, config: dict[str, Any]) -> Callable[[], None]:
    audit = Audit(coordinator.hooks)
    coordinator.register_contributor("audit.counts", "hooks-audit", lambda: dict(audit.counts))
    return coordinator.hooks.register("*", audit.on_event, priority=950, name="hooks-audit")
