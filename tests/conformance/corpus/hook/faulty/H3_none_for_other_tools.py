"""Planted: a tool it does not watch gets no answer at all."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if str(data.get("tool_name")) == "bash":
        return HookResult(action="continue", user_message="running a command")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="none-for-other-tools") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
