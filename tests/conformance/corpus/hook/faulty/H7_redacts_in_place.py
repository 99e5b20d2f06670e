"""Planted: it redacts inside the tool's input in place, and only when there is a secret."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    given = data.get("tool_input")
    if isinstance(given, dict) and "password" in given:
        given["password"] = "***"
        return HookResult(action="modify", data=data)
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="redacts-in-place") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
