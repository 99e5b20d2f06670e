"""Planted: one count for all sessions of the process."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)
counts = {"tools": 0}


async def handle(event, data):
    counts["tools"] += 1
    if counts["tools"] > 5:
        return HookResult(action="inject_context", context_injection="You use many tools.")
    return HookResult(action="continue")


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(e, handle, priority=50, name="count") for e in config.get("events", ["tool:pre"])
    ]
    logger.info("counting")

    def cleanup():
        for each in undo:
            each()

    return cleanup
