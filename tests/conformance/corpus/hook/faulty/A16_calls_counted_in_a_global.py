"""Warns the model after twenty tool calls.

Planted: the counter is a module global, so that calls of other sessions count as well.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)

CALLS = 0


async def count(event, data):
    global CALLS
    CALLS += 1
    if CALLS % 20 == 0:
        return HookResult(action="inject_context", context_injection=f"{CALLS} tool calls so far; wrap up soon.")
    return HookResult(action="continue", user_message=f"call {CALLS}")


async def mount(coordinator, config):
    undo = []
    for event in config.get("events", ["tool:pre"]):
        undo.append(coordinator.hooks.register(event, count, priority=35, name="call-counter"))
        logger.info("call-counter registered for %s", event)

    async def cleanup():
        for each in undo:
            each()

    return cleanup
