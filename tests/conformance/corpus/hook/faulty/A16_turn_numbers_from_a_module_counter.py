"""Numbers the prompts of a session and shows the number to the model.

Planted: the numbers come from an itertools.count of the module, so that two sessions share one sequence.
"""

import itertools
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)
turns = itertools.count(1)


async def number(event, data):
    return HookResult(
        action="inject_context", context_injection=f"This is prompt number {next(turns)}.", ephemeral=True
    )


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.register(event, number, priority=25, name="turn-number")
        for event in config.get("events", ["prompt:submit"])
    ]
    logger.info("turn-number registered")

    def cleanup():
        for each in undo:
            each()

    return cleanup
