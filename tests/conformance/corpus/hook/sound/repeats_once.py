"""Repeats a failed tool result once for observers that came late."""

import copy
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Repeat:
    def __init__(self, hooks):
        self._hooks = hooks

    async def on_post(self, event, data):
        result = data.get("tool_result", data.get("result"))
        if data.get("repeated") is not True and isinstance(result, dict) and not result.get("success", True):
            again = copy.deepcopy(data)
            again["repeated"] = True
            await self._hooks.emit(event, again)
        return HookResult(action="continue")


async def mount(coordinator, config):
    repeat = Repeat(coordinator.hooks)
    undo = [
        coordinator.hooks.register(event, repeat.on_post, priority=75, name="repeat")
        for event in config.get("events", ["tool:post"])
    ]
    logger.info("repeat: %d registrations", len(undo))

    async def cleanup():
        for each in undo:
            each()

    return cleanup
