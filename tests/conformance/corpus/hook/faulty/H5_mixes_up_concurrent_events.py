"""Planted: the payload waits on the module while another event comes in."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Stamp:
    async def __call__(self, event, data):
        self._data = dict(data)
        await anyio.sleep(0.002)
        return HookResult(action="modify", data={**self._data, "stamped": True})


handle = Stamp()


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=50, name="mixes-up-concurrent-events") for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
