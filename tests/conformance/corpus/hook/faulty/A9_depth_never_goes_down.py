"""Planted: every cancelled event counts as running for ever, until all are denied."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Depth:
    def __init__(self):
        self._running = 0

    async def __call__(self, event, data):
        self._running += 1
        if self._running > 3:
            return HookResult(action="deny", reason="too much at once")
        await anyio.sleep(0.001)
        self._running -= 1
        return HookResult(action="continue")


async def mount(coordinator, config):
    handler = Depth()
    undo = [
        coordinator.hooks.register(e, handler, priority=50, name="depth", on_failure="deny")
        for e in config.get("events", ["tool:pre"])
    ]
    logger.info("registered")

    def cleanup():
        for each in undo:
            each()

    return cleanup
