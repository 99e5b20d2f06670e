"""Planted: a cancelled handler never gives its lock back."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Ordered:
    def __init__(self):
        self._turn = anyio.Semaphore(1)

    async def __call__(self, event, data):
        await self._turn.acquire()
        await anyio.sleep(0.001)
        self._turn.release()
        return HookResult(action="continue")


async def mount(coordinator, config):
    handle = Ordered()
    undo = [
        coordinator.hooks.register(e, handle, priority=50, name="ordered") for e in config.get("events", ["tool:pre"])
    ]
    logger.info("in order")

    def cleanup():
        for each in undo:
            each()

    return cleanup
