"""Planted: cleanup cannot run twice."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def mount(coordinator, config):
    state = {}

    async def handle(event, data):
        return HookResult(action="continue")

    state["undo"] = coordinator.hooks.register("tool:pre", handle, priority=30, name="watch")
    logger.info("watching")

    async def cleanup():
        state.pop("undo")()

    return cleanup
