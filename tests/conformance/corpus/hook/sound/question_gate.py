"""A gate that asks before a program is run."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


ASKING = ("bash", "shell", "run_program")


async def handle(event, data):
    name = data.get("tool_name")
    if isinstance(name, str) and name in ASKING:
        return HookResult(
            action="ask_user",
            approval_prompt=f"Run {name}?",
            approval_options=["Allow", "Deny"],
            approval_default="deny",
            approval_timeout=30.0,
        )
    return HookResult(action="continue")


async def mount(coordinator, config):
    events = config.get("events", ["tool:pre"])
    undo = [
        coordinator.hooks.register(event, handle, priority=20, name="question-gate", on_failure="deny")
        for event in events
    ]
    logger.info("registered for %s", ", ".join(events))

    def cleanup():
        for each in undo:
            each()

    return cleanup
