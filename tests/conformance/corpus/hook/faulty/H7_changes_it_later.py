"""Planted: when the next event comes, it writes into the data of the last one."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Last:
    def __init__(self):
        self._last = {}

    async def __call__(self, event, data):
        self._last["superseded"] = True
        self._last = data
        return HookResult(action="continue")


async def mount(coordinator, config):
    handler = Last()
    undo = [coordinator.hooks.register(e, handler, priority=50, name="last") for e in config.get("events", ["*"])]
    logger.info("registered")

    def cleanup():
        for each in undo:
            each()

    return cleanup
