"""Planted: cleanup forgets one of the handlers."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def before(event, data):
    return HookResult(action="continue")


async def after(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    undo = coordinator.hooks.register("tool:pre", before, priority=30, name="before")
    undo = coordinator.hooks.register("tool:post", after, priority=30, name="after")
    logger.info("events: %s", config.get("events"))

    def cleanup():
        undo()

    return cleanup
