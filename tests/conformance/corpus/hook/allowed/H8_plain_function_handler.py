"""Shows tool names to the user from a plain function; the kernel accepts that, the contract recommends async."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


def show(event, data):
    name = data.get("tool_name")
    return HookResult(user_message=f"{event} {name}") if isinstance(name, str) else HookResult()


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(event, show, priority=60, name="show")
        for event in config.get("events", ["tool:pre", "tool:post"])
    ]
    logger.info("show registered for %d events", len(undo))

    async def cleanup():
        for each in undo:
            each()

    return cleanup
