"""Planted: what it answers is a coroutine."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def decide(data):
    return HookResult(action="continue")


async def handle(event, data):
    return decide(data)


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="forgets-to-await") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
