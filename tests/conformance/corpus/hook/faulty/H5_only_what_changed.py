"""Planted: a modify carries only what it changed."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    given = data.get("tool_input")
    if not isinstance(given, dict):
        return HookResult(action="continue")
    return HookResult(action="modify", data={"tool_input": {**given, "checked": True}})


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="only-what-changed") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
