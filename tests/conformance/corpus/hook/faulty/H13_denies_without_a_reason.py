"""Planted: a denial that does not say why."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    if "secret" in str(data.get("tool_input")):
        return HookResult(action="deny")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="denies-without-a-reason", on_failure="deny")
        for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
