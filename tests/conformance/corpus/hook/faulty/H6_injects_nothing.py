"""Planted: an injection without text."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    findings = [key for key in data if key == "lint_errors"]
    return HookResult(action="inject_context", context_injection="".join(findings))


async def mount(coordinator, config):
    events = config.get("events", ["tool:post"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="injects-nothing") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
