"""Planted: a modify without any payload."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if data.get("prompt"):
        return HookResult(action="modify", reason="looked at it")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["prompt:submit"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="without-payload") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
