"""Finds out on being ready which events there are, and keeps the last few of each for a capability.

What on_session_ready registers stays.
"""

import copy
import logging
from collections import deque

from amplifier import HookResult
from amplifier.events import ALL_EVENTS

__amplifier_module_type__ = "hook"
logger = logging.getLogger("recent")


class Recent:
    def __init__(self, keep):
        self.keep = keep
        self.seen = {}

    async def remember(self, event, data):
        kept = self.seen.setdefault(event, deque(maxlen=self.keep))
        try:
            kept.append(copy.deepcopy(data))
        except Exception as error:  # what others put into events cannot always be copied
            kept.append({"note": f"{type(error).__name__} while copying"})
        return HookResult(action="continue")

    def last(self, event):
        return list(self.seen.get(event, ()))


async def mount(coordinator, config):
    recent = Recent(int(config.get("keep", 20)))
    coordinator.register_capability("recent", recent)
    coordinator.session_state["recent.config"] = dict(config)

    def cleanup():
        recent.seen.clear()

    return cleanup


async def on_session_ready(coordinator):
    recent = coordinator.get_capability("recent")
    chosen = coordinator.session_state["recent.config"].get("events")
    events = set(chosen or ALL_EVENTS)
    if not chosen:
        for more in await coordinator.collect_contributions("observability.events"):
            events.update(more)
    undo = [coordinator.hooks.register(event, recent.remember, priority=80, name="recent") for event in sorted(events)]
    logger.info("remembering %d events", len(undo))

    def forget():
        for each in undo:
            each()
