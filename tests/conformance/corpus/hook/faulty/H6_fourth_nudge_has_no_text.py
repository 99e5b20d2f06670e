"""Nudges the model after failed tool results, with a sharper text each time.

Planted: there are three texts; from the fourth failure on the lookup yields None.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

log = logging.getLogger("nudge")

TEXTS = {
    1: "The tool failed. Read its error before you try again.",
    2: "The tool failed again. Try another way.",
    3: "Stop calling this tool and explain the problem to the user.",
}


def failed(result):
    return isinstance(result, dict) and result.get("success") is False


async def mount(coordinator, config):
    failures = 0

    async def on_result(event, data):
        nonlocal failures
        if not failed(data.get("tool_result", data.get("result"))):
            return HookResult()
        failures += 1
        return HookResult(action="inject_context", context_injection=TEXTS.get(failures))

    handles = [
        coordinator.hooks.register(event, on_result, priority=55, name="nudge")
        for event in config.get("events") or ["tool:post"]
    ]
    log.info("nudge registered %d handlers", len(handles))
    return lambda: [handle() for handle in handles] and None
