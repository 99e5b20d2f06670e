"""Reports tool errors as policy violations, and policy violations as tool errors.

Planted: the two handlers emit each other's event without end.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Bridge:
    def __init__(self, coordinator, events):
        self.hooks = coordinator.hooks
        self.events = events
        self.undo = []

    def register(self):
        table = {"tool:error": self.on_error, "policy:violation": self.on_violation}
        for event in self.events:
            self.undo.append(
                self.hooks.register(event, table.get(event, self.on_error), priority=60, name=f"bridge-{event}")
            )
            logger.info("bridge registered for %s", event)

    async def on_error(self, event, data):
        await self.hooks.emit("policy:violation", {"policy": "bridge", "detail": str(data.get("error"))})
        return HookResult(action="continue")

    async def on_violation(self, event, data):
        await self.hooks.emit("tool:error", {"tool_name": str(data.get("tool_name")), "error": str(data.get("detail"))})
        return HookResult(action="continue")

    async def close(self):
        while self.undo:
            self.undo.pop()()


async def mount(coordinator, config):
    bridge = Bridge(coordinator, config.get("events", ["tool:error", "policy:violation"]))
    bridge.register()
    return bridge.close
