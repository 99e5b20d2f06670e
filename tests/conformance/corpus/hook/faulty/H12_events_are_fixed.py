"""Planted: nobody can choose which events are handled."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    undo = []
    for event in ("tool:pre", "tool:post", "tool:error"):
        undo.append(coordinator.hooks.register(event, handle, priority=30, name=f"watch-{event}"))
    logger.info("watching tools")

    def cleanup():
        while undo:
            undo.pop()()

    return cleanup
