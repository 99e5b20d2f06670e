"""Planted: at the end of a session it blocks the loop."""

import logging

import time

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if event == "session:end":
        time.sleep(0.3)
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["*"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="blocks-on-one-event") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
