"""Planted: for an event it does not know it answers True."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


KNOWN = ("session:start", "session:end")


async def handle(event, data):
    if event in KNOWN:
        logger.debug("%s", event)
        return HookResult()
    return True


async def mount(coordinator, config):
    events = config.get("events", ["*"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="true-for-unknown-events") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
