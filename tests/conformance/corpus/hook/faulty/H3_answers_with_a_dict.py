"""Planted: the answer is a dict."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    return {"action": "continue"}


async def mount(coordinator, config):
    events = config.get("events", ["prompt:submit", "tool:post"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="answers-with-a-dict") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
