"""Gets the hooks from the mount points, as published modules do."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def count(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre", "tool:post"])
    first, second = coordinator.get("hooks"), coordinator.mount_points["hooks"]
    undo = [hooks.register(event, count, priority=50, name="counter") for hooks in (first, second) for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
