"""Denies a tool call that was made before with the same arguments.

Planted: the set of calls is a default argument, one for all sessions of the process.
"""

import json
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


def key_of(data):
    return json.dumps([data.get("tool_name"), data.get("tool_input")], sort_keys=True, default=str)


class NoRepeats:
    def __init__(self, seen=set()):
        self.seen = seen

    async def __call__(self, event, data):
        key = key_of(data)
        if key in self.seen:
            return HookResult(action="deny", reason="this call was made before")
        self.seen.add(key)
        return HookResult(action="continue")


async def mount(coordinator, config):
    handler = NoRepeats()
    undo = [
        coordinator.hooks.register(event, handler, priority=15, name="no-repeats", on_failure="deny")
        for event in config.get("events", ["tool:pre"])
    ]
    logger.info("no-repeats registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
