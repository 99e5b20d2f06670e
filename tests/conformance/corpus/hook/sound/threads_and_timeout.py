"""Looks at payloads in a thread, for a limited time."""

import logging

import anyio
import anyio.to_thread

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


def longest(data):
    return max((len(str(value)) for value in data.values()), default=0)


async def handle(event, data):
    with anyio.move_on_after(1):
        size = await anyio.to_thread.run_sync(longest, dict(data))
        if size > 100_000:
            return HookResult(action="continue", user_message=f"{event} carries much", user_message_level="warning")
    return HookResult(action="continue")


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(event, handle, priority=70, name="size", timeout=5.0)
        for event in config.get("events", ["tool:post", "provider:response"])
    ]
    logger.info("watching sizes")

    def cleanup():
        for each in undo:
            each()

    return cleanup
