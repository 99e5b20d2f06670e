"""Counts events and reports the first five.

Planted: from the sixth call on the handler returns None instead of a result.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class FirstFive:
    def __init__(self):
        self.seen = 0

    async def __call__(self, event, data):
        self.seen += 1
        if self.seen <= 5:
            logger.info("event %d: %s", self.seen, event)
            return HookResult(action="continue")


async def mount(coordinator, config):
    handler = FirstFive()
    undo = []
    for event in config.get("events", ["tool:pre", "tool:post"]):
        undo.append(coordinator.hooks.register(event, handler, priority=70, name="first-five"))
    logger.info("first-five registered for %d events", len(undo))

    async def cleanup():
        for each in undo:
            each()

    return cleanup
