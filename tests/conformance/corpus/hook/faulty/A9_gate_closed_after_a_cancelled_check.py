"""Lets one tool call at a time through a slow check.

Planted: a call that is cancelled during the check leaves the gate closed; later calls are denied as busy.
"""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class OneCheck:
    def __init__(self):
        self.checking = None

    async def __call__(self, event, data):
        while self.checking is not None:
            with anyio.move_on_after(0.2):
                await self.checking.wait()
                continue
            return HookResult(action="deny", reason="another check takes too long")
        self.checking = anyio.Event()
        await anyio.sleep(0.001)
        done, self.checking = self.checking, None
        done.set()
        return HookResult(action="continue")


async def mount(coordinator, config):
    check = OneCheck()
    undo = [
        coordinator.hooks.register(event, check, priority=20, name="one-check", on_failure="deny")
        for event in config.get("events", ["tool:pre"])
    ]
    logger.info("one-check registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
