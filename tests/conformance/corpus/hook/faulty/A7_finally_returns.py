"""Asks a small checker before a tool runs.

Planted: the return inside finally discards the cancellation.
"""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Checker:
    async def __call__(self, event, data):
        verdict = HookResult(action="continue")
        try:
            await anyio.sleep(0.001)
            if data.get("tool_name") == "format_disk":
                verdict = HookResult(action="deny", reason="format_disk is never allowed")
        finally:
            return verdict


async def mount(coordinator, config):
    checker = Checker()
    undo = [
        coordinator.hooks.register(event, checker, priority=22, name="checker", on_failure="deny")
        for event in config.get("events", ["tool:pre"])
    ]
    logger.info("checker registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
