"""Shortens long tool results.

Planted: the modified payload holds the keys of the catalogue only; what else the event carried is lost.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)

KEYS = ("tool_name", "tool_call_id", "tool_input", "tool_result", "result")


async def shorten(event, data):
    result = data.get("result")
    if not isinstance(result, str) or len(result) < 40:
        return HookResult(action="continue")
    new = {key: data[key] for key in KEYS if key in data}
    new["result"] = new["tool_result"] = result[:40]
    return HookResult(action="modify", data=new)


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(event, shorten, priority=50, name="shorten")
        for event in config.get("events", ["tool:post"])
    ]
    logger.info("shorten registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
