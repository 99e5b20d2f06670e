"""Logs the error type of failed tools.

Planted: a failed result whose error is None raises; results with an error object are fine.
"""

import collections
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class FailureCounter:
    def __init__(self):
        self.kinds = collections.Counter()

    async def on_post(self, event, data):
        result = data.get("tool_result") or data.get("result")
        if isinstance(result, dict) and result.get("success") is False and "error" in result:
            kind = result["error"].get("type", "unknown")
            self.kinds[str(kind)] += 1
            logger.warning("a tool failed: %s", kind)
        return HookResult(action="continue")


async def mount(coordinator, config):
    counter = FailureCounter()
    undo = []
    for event in config.get("events", ["tool:post"]):
        undo.append(coordinator.hooks.register(event, counter.on_post, priority=80, name="failure-counter"))
    logger.info("failure-counter is listening")

    def cleanup():
        while undo:
            undo.pop()()

    return cleanup
