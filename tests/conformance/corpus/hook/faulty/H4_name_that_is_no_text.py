"""Planted: a tool name that is not a text raises, for one tool input only."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


WATCHED = {"write_file", "edit_file"}


async def handle(event, data):
    if data.get("tool_input") and data.get("tool_name", "").startswith("write"):
        return HookResult(action="continue", user_message="writing")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="name-that-is-no-text") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
