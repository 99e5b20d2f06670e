"""Planted: a tool input that is None raises."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    command = data.get("tool_input", {}).get("command", "")
    if "rm -rf" in str(command):
        return HookResult(action="deny", reason="too dangerous")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="input-that-is-no-object", on_failure="deny")
        for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
