"""Stops retry storms: after two failed results in a row it would like to inject advice.

Planted: on that path the handler returns the class HookResult, not an instance.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class RetryStorm:
    def __init__(self):
        self.row = 0

    async def __call__(self, event, data):
        result = data.get("tool_result")
        if isinstance(result, dict) and result.get("success") is False:
            self.row += 1
        else:
            self.row = 0
        if self.row >= 2:
            logger.warning("%d failures in a row", self.row)
            return HookResult
        return HookResult(action="continue")


async def mount(coordinator, config):
    storm = RetryStorm()
    undo = [
        coordinator.hooks.register(event, storm, priority=45, name="retry-storm")
        for event in config.get("events", ["tool:post"])
    ]
    logger.info("retry-storm registered")
    return lambda: [each() for each in undo] and None
