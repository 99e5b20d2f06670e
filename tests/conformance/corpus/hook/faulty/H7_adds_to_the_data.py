"""Planted: it writes into the data it was given."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    data["seen_by"] = "audit"
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["*"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="adds-to-the-data") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
