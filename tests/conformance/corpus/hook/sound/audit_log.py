"""Counts events; nothing can go wrong."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Count:
    def __init__(self):
        self.seen = {}

    async def __call__(self, event, data):
        self.seen[event] = self.seen.get(event, 0) + 1
        logger.debug("%s: %d keys", event, len(data))
        return HookResult()


async def mount(coordinator, config):
    count = Count()
    undo = [
        coordinator.hooks.register(event, count, priority=90, name="audit") for event in config.get("events", ["*"])
    ]
    logger.info("auditing")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
