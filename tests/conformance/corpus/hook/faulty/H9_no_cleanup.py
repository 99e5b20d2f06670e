"""Planted: mount returns nothing that unregisters the handler."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    for event in config.get("events", ["tool:pre", "tool:post"]):
        coordinator.hooks.register(event, handle, priority=20, name="watcher")
        logger.info("watching %s", event)
