"""Planted: it asks the user, and does not say what."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if data.get("tool_name") == "deploy":
        return HookResult(action="ask_user", approval_default="deny")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="asks-without-a-question", on_failure="deny")
        for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
