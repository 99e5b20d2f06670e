"""Marks repeated timeouts of tools, whether the error is an object, a text or missing."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class TimeoutWatch:
    def __init__(self, limit):
        self.limit = limit
        self.timeouts = 0

    async def __call__(self, event, data):
        result = data.get("result")
        if not isinstance(result, dict) or result.get("success", True):
            self.timeouts = 0
            return HookResult(action="continue")
        error = result.get("error") or ""
        if "timeout" in str(error).lower():
            self.timeouts += 1
        if self.timeouts >= self.limit:
            return HookResult(action="inject_context", context_injection="Tools keep timing out; use smaller steps.")
        return HookResult(action="continue")


async def mount(coordinator, config):
    watch = TimeoutWatch(config.get("limit", 3))
    undo = [
        coordinator.hooks.register(event, watch, priority=50, name="timeout-watch")
        for event in config.get("events", ["tool:post"])
    ]
    logger.info("timeout-watch: %d registrations", len(undo))

    async def cleanup():
        for each in undo:
            each()

    return cleanup
