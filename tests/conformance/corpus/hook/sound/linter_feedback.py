"""Tells the model when a tool's answer looks like an error."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def handle(event, data):
    result = data.get("result", data.get("tool_result"))
    output = result.get("output") if isinstance(result, dict) else result
    if isinstance(output, str) and "error" in output.lower():
        return HookResult(
            action="inject_context",
            context_injection=f"The last tool mentioned an error:\n{output[:200]}",
            ephemeral=True,
            user_message="looking into an error",
        )
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:post"])
    undo = [coordinator.hooks.register(event, handle, priority=50, name="linter-feedback") for event in events]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
