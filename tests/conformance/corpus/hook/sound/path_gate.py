"""A gate: denies writing outside of the working directory."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    given = data.get("tool_input")
    path = given.get("path") if isinstance(given, dict) else None
    if isinstance(path, str) and (path.startswith("/") or ".." in path):
        return HookResult(action="deny", reason=f"{path!r} leads away from here")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=15, name="path-gate", on_failure="deny") for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
