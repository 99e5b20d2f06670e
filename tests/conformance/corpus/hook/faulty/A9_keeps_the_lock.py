"""Planted: a cancelled handler never gives its lock back."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


LOCKS = {}


class Ordered:
    def __init__(self):
        self._lock = None

    async def __call__(self, event, data):
        if self._lock is None:
            self._lock = anyio.Semaphore(1)
        await self._lock.acquire()
        await anyio.sleep(0.001)
        self._lock.release()
        return HookResult(action="continue")


handle = Ordered()


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="keeps-the-lock") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
