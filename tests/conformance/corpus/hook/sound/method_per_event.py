"""One object with a method for each event; methods get the event's name as well."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Story:
    def __init__(self, names):
        self._names = names
        self._told = []

    async def on_prompt(self, event, data):
        self._told.append(("asked", str(data.get("prompt", ""))[:40]))
        return HookResult(action="continue")

    async def on_tool(self, event, data):
        self._told.append(("used", str(data.get("tool_name", "?"))[:40]))
        return HookResult(action="continue", suppress_output=event == "tool:error")

    def register(self, hooks):
        table = {"prompt:submit": self.on_prompt, "tool:post": self.on_tool, "tool:error": self.on_tool}
        for event, method in table.items():
            if event in self._names:
                yield hooks.register(event, method, priority=40, name=f"story-{method.__name__}")


async def mount(coordinator, config):
    story = Story(config.get("enabled_events", ["prompt:submit", "tool:post", "tool:error"]))
    undo = list(story.register(coordinator.hooks))
    logger.info("%d handlers", len(undo))

    async def cleanup():
        while undo:
            undo.pop()()

    return cleanup
