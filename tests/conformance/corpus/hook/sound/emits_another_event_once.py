"""Turns failed tool results into policy:violation events, and guards itself against its own emissions."""

import contextvars
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)
inside = contextvars.ContextVar("inside_violation_reporter", default=False)


class Reporter:
    def __init__(self, hooks):
        self.hooks = hooks

    async def __call__(self, event, data):
        result = data.get("tool_result")
        if inside.get() or not isinstance(result, dict) or result.get("success") is not False:
            return HookResult()
        error = result.get("error")
        detail = error.get("message") if isinstance(error, dict) else None
        token = inside.set(True)
        try:
            await self.hooks.emit("policy:violation", {"policy": "tools-succeed", "detail": str(detail or "failed")})
        finally:
            inside.reset(token)
        return HookResult()


async def mount(coordinator, config):
    reporter = Reporter(coordinator.hooks)
    undo = [
        coordinator.hooks.register(event, reporter, priority=66, name="violation-reporter")
        for event in config.get("events", ["tool:post"])
    ]
    logger.info("violation-reporter registered")

    async def cleanup():
        for each in undo:
            each()

    return cleanup
