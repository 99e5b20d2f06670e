"""Remembers what it saw in this session, and asks the model to slow down."""

import logging
import time

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Pace:
    def __init__(self, most):
        self._most = most
        self._times = []
        self._lock = anyio.Lock()

    async def __call__(self, event, data):
        async with self._lock:
            await anyio.lowlevel.checkpoint()
            now = time.monotonic()
            self._times = [each for each in self._times if now - each < 60] + [now]
            if len(self._times) > self._most:
                return HookResult(action="inject_context", context_injection="Slow down, please.")
            return HookResult(action="continue")


async def mount(coordinator, config):
    pace = Pace(config.get("most", 1000))
    undo = [
        coordinator.hooks.register(event, pace, priority=60, name="pace")
        for event in config.get("events", ["tool:pre"])
    ]
    logger.info("pacing")
    coordinator.register_cleanup(lambda: [each() for each in undo])
