"""Planted: cleanup raises, because what it closes is long closed."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    undo = coordinator.hooks.register("tool:pre", handle, priority=30, name="watch")
    logger.info("watching")

    async def cleanup():
        undo()
        raise RuntimeError("nothing to close")

    return cleanup
