"""Replaces e-mail addresses in prompts and tool results with marks; the payload given is left as it is."""

import logging
import re

from amplifier import HookResult, to_dict

__amplifier_module_type__ = "hook"
logger = logging.getLogger("scrubber")
ADDRESS = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}\.[\w.]{1,190}")
OWN = ("timestamp", "session_id", "parent_id")


class Scrubber:
    def __init__(self):
        self.hits = 0

    def clean(self, value):
        if isinstance(value, str):
            text, count = ADDRESS.subn("[address]", value)
            self.hits += count
            return text
        if isinstance(value, dict):
            return {str(key): self.clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        try:
            return self.clean(to_dict(value))
        except Exception:  # somebody else's object
            return self.clean(str(value))

    async def handle(self, event, data):
        before = self.hits
        try:
            cleaned = self.clean(data)
        except RecursionError:
            return HookResult(action="deny", reason="nested too deeply to be scrubbed")
        if self.hits == before:
            return HookResult(action="continue")
        return HookResult(action="modify", data=cleaned, reason=f"{self.hits - before} addresses replaced")


async def mount(coordinator, config):
    scrubber = Scrubber()
    undo = []
    for event in config.get("events", ["prompt:submit", "tool:pre", "tool:post"]):
        undo.append(
            coordinator.hooks.register(event, scrubber.handle, priority=20, name=f"scrubber.{event}", on_failure="deny")
        )
    logger.info("scrubbing %d events", len(undo))

    def cleanup():
        for each in undo:
            each()

    return cleanup
