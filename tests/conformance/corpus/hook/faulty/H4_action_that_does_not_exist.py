"""Planted: for one tool it wants an action that does not exist, and making it raises."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if data.get("tool_name") == "drop_table":
        return HookResult(action="block", reason="no")
    return HookResult(action="continue")


async def mount(coordinator, config):
    handler = handle
    undo = [
        coordinator.hooks.register(e, handler, priority=50, name="guard") for e in config.get("events", ["tool:pre"])
    ]
    logger.info("registered")

    def cleanup():
        for each in undo:
            each()

    return cleanup
