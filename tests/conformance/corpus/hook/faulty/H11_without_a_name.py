"""Planted: the registration has no name."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"


async def handle(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    logging.getLogger(__name__).info("mounting")
    return coordinator.hooks.register("tool:pre", handle, 30)
