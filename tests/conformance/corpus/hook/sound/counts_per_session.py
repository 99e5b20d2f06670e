"""Counts tool calls of its session and injects a reminder at every n-th, from texts that never run out."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Counter:
    def __init__(self, every, texts):
        self.every, self.texts = every, texts
        self.calls = self.reminders = 0

    async def __call__(self, event, data):
        self.calls += 1
        if self.calls % self.every:
            return HookResult(action="continue")
        text = self.texts[self.reminders % len(self.texts)]
        self.reminders += 1
        return HookResult(
            action="inject_context", context_injection=text, context_injection_role="user", ephemeral=True
        )


async def mount(coordinator, config):
    every = config.get("every", 3)
    texts = [text for text in config.get("texts") or [] if isinstance(text, str) and text.strip()]
    counter = Counter(every if isinstance(every, int) and every > 0 else 3, texts or ["Check the plan.", "Be brief."])
    undo = []
    for event in config.get("events", ["tool:pre"]):
        undo.append(coordinator.hooks.register(event, counter, priority=45, name="counter"))
        logger.info("counter registered for %s", event)

    async def cleanup():
        for each in undo:
            each()

    return cleanup
