"""Planted: a gate that answers only to deny, and returns nothing for what it would allow."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if "rm -rf" in str(data.get("tool_input")):
        return HookResult(action="deny", reason="it deletes everything")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="no-deleting", on_failure="deny")
        for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
