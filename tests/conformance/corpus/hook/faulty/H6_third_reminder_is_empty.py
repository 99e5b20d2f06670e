"""Reminds the model of its plan at every tenth event.

Planted: the third reminder and all that follow are built from an empty template.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)

TEMPLATES = ["Keep to the plan.", "You are at step {count}; keep to the plan.", ""]


class Reminder:
    def __init__(self, every):
        self.every = every
        self.count = 0
        self.reminders = 0

    async def __call__(self, event, data):
        self.count += 1
        if self.count % self.every:
            return HookResult(action="continue")
        template = TEMPLATES[min(self.reminders, len(TEMPLATES) - 1)]
        self.reminders += 1
        return HookResult(action="inject_context", context_injection=template.format(count=self.count), ephemeral=True)


async def mount(coordinator, config):
    reminder = Reminder(max(int(config.get("every", 10)), 1))
    undo = []
    for event in config.get("events", ["provider:request"]):
        undo.append(coordinator.hooks.register(event, reminder, priority=40, name="plan-reminder"))
        logger.info("plan-reminder registered for %s", event)

    async def cleanup():
        for each in undo:
            each()

    return cleanup
