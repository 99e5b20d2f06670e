"""Reports the mean length of tool inputs for every window of eight calls.

Planted: the window is emptied before the mean is taken, so that the eighth call divides by zero.
"""

import json
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class MeanLength:
    def __init__(self, window):
        self.window = window
        self.lengths = []

    async def handle(self, event, data):
        self.lengths.append(len(json.dumps(data.get("tool_input"), default=str)))
        if len(self.lengths) >= self.window:
            self.lengths = []
            logger.info("mean length of inputs: %.1f", sum(self.lengths) / len(self.lengths))
        return HookResult(action="continue")


async def mount(coordinator, config):
    window = config.get("window", 8)
    mean = MeanLength(window if isinstance(window, int) and window > 0 else 8)
    undo = [
        coordinator.hooks.register(each, mean.handle, priority=85, name="mean-length")
        for each in config.get("events", ["tool:pre"])
    ]
    logger.info("mean-length registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
