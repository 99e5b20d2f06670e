"""Planted: the action is changed to one that does not exist."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    result = HookResult(action="continue")
    if not isinstance(data.get("tool_input"), dict):
        result.action = "block"
    return result


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="unknown-action-after-the-fact") for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
