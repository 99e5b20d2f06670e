"""Normalises tool names and lets others see the normalised call.

Planted: the handler of tool:pre emits tool:pre itself, which reaches it again.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def mount(coordinator, config):
    hooks = coordinator.hooks

    async def normalise(event, data):
        name = data.get("tool_name")
        if isinstance(name, str):
            await hooks.emit(event, {**data, "tool_name": name.strip().lower()})
        return HookResult(action="continue")

    undo = [
        hooks.register(event, normalise, priority=20, name="normalise") for event in config.get("events", ["tool:pre"])
    ]
    logger.info("normalise registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
