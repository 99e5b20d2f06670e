"""Mirrors every event under the prefix "mirror:".

Planted: it is registered for all events, its own mirror events included, and mirrors those as well.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Mirror:
    def __init__(self, hooks):
        self.hooks = hooks

    async def __call__(self, event, data):
        await self.hooks.emit("mirror:event", {"mirrored": event, "keys": sorted(map(str, data))})
        return HookResult(action="continue")


async def mount(coordinator, config):
    coordinator.register_contributor("observability.events", "mirror", lambda: ["mirror:event"])
    mirror = Mirror(coordinator.hooks)
    undo = []
    for event in config.get("events", ["*"]):
        undo.append(coordinator.hooks.register(event, mirror, priority=90, name="mirror"))
        logger.info("mirroring %s", event)

    async def cleanup():
        for each in undo:
            each()

    return cleanup
