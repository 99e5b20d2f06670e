"""Written for asyncio, and declared so; its work is done when cleanup returns."""

import asyncio
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"
__amplifier_backends__ = ("asyncio",)

logger = logging.getLogger(__name__)


class Notifier:
    def __init__(self):
        self._lock = asyncio.Lock()
        self.sent = []

    async def __call__(self, event, data):
        async with self._lock:
            await asyncio.sleep(0)
            self.sent.append(event)
        return HookResult(action="continue")


async def mount(coordinator, config):
    notifier = Notifier()
    events = config.get("events", ["session:start", "session:end"])
    undo = [coordinator.hooks.register(event, notifier, priority=75, name="notifier") for event in events]
    logger.info("notifying about %s", events)

    async def cleanup():
        for each in undo:
            each()
        notifier.sent.clear()

    return cleanup
