"""Denies a tool after three failed results.

Planted: the strikes are a class attribute that is changed in place, never an instance attribute.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Strikes:
    by_tool = {}

    def __init__(self, limit):
        self.limit = limit

    async def on_event(self, event, data):
        tool = str(data.get("tool_name"))
        if event == "tool:pre":
            if self.by_tool.get(tool, 0) >= self.limit:
                return HookResult(action="deny", reason=f"{tool} failed {self.limit} times")
            return HookResult(action="continue")
        result = data.get("tool_result")
        if event == "tool:error" or (isinstance(result, dict) and result.get("success") is False):
            self.by_tool[tool] = self.by_tool.get(tool, 0) + 1
        return HookResult(action="continue")


async def mount(coordinator, config):
    strikes = Strikes(config.get("limit", 3))
    undo = []
    for event in config.get("events", ["tool:pre", "tool:post", "tool:error"]):
        undo.append(coordinator.hooks.register(event, strikes.on_event, priority=12, name="strikes", on_failure="deny"))
    logger.info("strikes registered for %d events", len(undo))

    async def cleanup():
        while undo:
            undo.pop()()

    return cleanup
