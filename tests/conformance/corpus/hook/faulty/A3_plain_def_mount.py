"""Shows the names of tools to the user.

Planted: mount is a plain function, not async.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def show(event, data):
    return HookResult(action="continue", user_message=f"{event}: {data.get('tool_name')}")


def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(event, show, priority=65, name="show-tools")
        for event in config.get("events", ["tool:pre"])
    ]
    logger.info("show-tools registered")

    def cleanup():
        for each in undo:
            each()

    return cleanup
