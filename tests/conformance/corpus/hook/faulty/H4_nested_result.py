"""Planted: a result without output raises."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    result = data.get("result")
    if isinstance(result, dict) and result.get("success"):
        lines = result["output"].splitlines()
        if len(lines) > 500:
            return HookResult(action="inject_context", context_injection="That was long.")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:post"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="nested-result") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
