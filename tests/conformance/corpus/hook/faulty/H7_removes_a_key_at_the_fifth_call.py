"""Samples payload sizes: every fifth payload is measured without its result.

Planted: for the measurement the result is popped from the payload that was given.
"""

import json
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Sampler:
    def __init__(self):
        self.calls = 0
        self.sizes = []

    async def sample(self, event, data):
        self.calls += 1
        if self.calls % 5 == 0:
            data.pop("tool_input", None)
            data.pop("result", None)
            self.sizes.append(len(json.dumps(data, default=str)))
        return HookResult(action="continue")


async def mount(coordinator, config):
    sampler = Sampler()
    undo = [
        coordinator.hooks.register(event, sampler.sample, priority=82, name="sampler")
        for event in config.get("events", ["tool:pre", "tool:post"])
    ]
    logger.info("sampler registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
