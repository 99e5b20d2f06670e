"""Keeps the last events of its session for a capability, and hears every event through "*"."""

import collections
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def mount(coordinator, config):
    keep = config.get("keep", 100)
    recent = collections.deque(maxlen=keep if isinstance(keep, int) and keep > 0 else 100)

    async def record(event, data):
        recent.append((event, data.get("timestamp")))
        return HookResult(action="continue")

    undo = [
        coordinator.hooks.register(event, record, priority=90, name="recent-events")
        for event in config.get("events") or ["*"]
    ]
    logger.info("recent-events registered for %d names", len(undo))
    coordinator.register_capability("recent.events", lambda: list(recent))

    def cleanup():
        while undo:
            undo.pop()()
        recent.clear()

    return cleanup
