"""Redacts secrets in a copy, at any depth, and hides what is secret by name."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


HIDDEN = ("password", "token", "api_key")


def redacted(value):
    if isinstance(value, dict):
        hidden = {key: "[redacted]" for key in value if key in HIDDEN}
        return {key: redacted(member) for key, member in value.items()} | hidden
    if isinstance(value, list):
        return [redacted(member) for member in value]
    if isinstance(value, str) and "secret" in value:
        return "[redacted]"
    return value


async def handle(event, data):
    clean = redacted(data)
    if clean == data:
        return HookResult(action="continue")
    return HookResult(action="modify", data=clean)


async def mount(coordinator, config):
    events = config.get("events", ["*"])
    undo = [coordinator.hooks.register(event, handle, priority=10, name="redactor") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
