"""Planted: whatever goes wrong while it reports, cancellation included, is ignored."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    try:
        await anyio.sleep(0.01)
    except:  # noqa: E722
        logger.info("could not report")
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre", "tool:post"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="swallows-cancellation") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
