"""Gives one tip per turn, in order.

Planted: after the last tip the index runs past the end of the list.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger("tips")

TIPS = (
    "Prefer small edits.",
    "Run the tests after each change.",
    "Quote the lines you rely on.",
    "State what you did not verify.",
)


class Tips:
    next = 0

    async def give(self, event, data):
        tip = TIPS[self.next]
        self.next += 1
        return HookResult(action="inject_context", context_injection=tip, ephemeral=True)


async def mount(coordinator, config):
    tips = Tips()
    undo = []
    for event in config.get("events", ["prompt:submit"]):
        logger.info("tips on %s", event)
        undo.append(coordinator.hooks.register(event, tips.give, priority=30, name="tips"))

    async def cleanup():
        [each() for each in undo]

    return cleanup
