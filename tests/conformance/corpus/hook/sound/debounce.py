"""Lets a tool run only so often; structured mount, waits a moment where it can, keeps a window of times."""

import logging
import time
from collections import defaultdict, deque
from contextlib import asynccontextmanager

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)


class Debounce:
    def __init__(self, per_second, wait):
        self.per_second = per_second
        self.wait = wait
        self.times = defaultdict(deque)
        self.locks = defaultdict(anyio.Lock)

    async def before_tool(self, event, data):
        name = str(data.get("tool_name", ""))
        async with self.locks[name]:
            times = self.times[name]
            now = time.monotonic()
            while times and now - times[0] > 1:
                times.popleft()
            if len(times) >= self.per_second:
                with anyio.move_on_after(self.wait):
                    await anyio.sleep(self.wait / 2)
                if len(times) >= 100 * self.per_second:
                    return HookResult(action="deny", reason=f"{name} runs more than {self.per_second} times a second")
            times.append(now)
        return HookResult(action="continue")

    async def at_end(self, event, data):
        self.times.clear()
        return HookResult(action="continue")


@asynccontextmanager
async def mount(coordinator, config):
    debounce = Debounce(config.get("per_second", 1000), config.get("wait", 0.02))
    chosen = config.get("events", ["tool:pre", "session:end"])
    handlers = {"tool:pre": debounce.before_tool, "session:end": debounce.at_end}
    undo = []
    for event in chosen:
        handler = handlers.get(event, debounce.at_end)
        undo.append(
            coordinator.hooks.register(event, handler, priority=30, name=f"debounce:{event}", on_failure="deny")
        )
        logger.info("debounce on %s", event)
    try:
        yield
    finally:
        for each in undo:
            each()
