"""Adds up tokens, warns the model once when a budget is passed, and writes a summary in the background.

Its advice is empty.
"""

import json
import logging
from pathlib import Path

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger("usage-meter")
EVENTS = ("llm:response", "provider:response", "session:end")


class Meter:
    def __init__(self, budget, hooks):
        self.budget = budget
        self.hooks = hooks
        self.spent = {"input": 0, "output": 0}
        self.warned = False
        self.changed = anyio.Event()

    async def __call__(self, event, data):
        usage = data.get("usage")
        if not isinstance(usage, dict):
            return HookResult(action="continue")
        for side in self.spent:
            value = usage.get(f"{side}_tokens", 0)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.spent[side] += int(value)
        self.changed.set()
        if sum(self.spent.values()) > self.budget and not self.warned:
            self.warned = True
            await self.hooks.emit("usage-meter:exceeded", {"spent": dict(self.spent)})
            return HookResult(action="inject_context", context_injection="")
        return HookResult()

    async def report(self, file):
        while True:
            await self.changed.wait()
            self.changed = anyio.Event()
            if file is not None:
                await anyio.Path(file).write_text(json.dumps(self.spent))


async def mount(coordinator, config):
    config = config or {}
    meter = Meter(config.get("budget", 10), coordinator.hooks)
    events = config.get("events", EVENTS)
    coordinator.register_contributor("observability.events", "usage-meter", lambda: ["usage-meter:exceeded"])
    undo = []
    for event in events:
        undo.append(coordinator.hooks.register(event, meter, priority=50, name=f"usage-meter:{event}"))
        logger.debug("listening to %s", event)
    file = config.get("file")
    coordinator.start_soon(meter.report, Path(file) if file else None, name="usage-meter")

    def cleanup():
        while undo:
            undo.pop()()

    return cleanup
