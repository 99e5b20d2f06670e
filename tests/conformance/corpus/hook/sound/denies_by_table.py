"""Denies or asks by a table of (tool, key, value), as a gate that fails closed."""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)

RULES = {
    "bash": lambda value: HookResult(action="ask_user", approval_prompt=f"Run {str(value.get('command'))[:80]!r}?"),
    "format_disk": lambda value: HookResult(action="deny", reason="format_disk is not allowed here"),
    "web_fetch": lambda value: (
        HookResult(action="deny", reason="only https is allowed")
        if str(value.get("url", "https://")).startswith("http://")
        else HookResult()
    ),
}


async def judge(event, data):
    if event != "tool:pre":
        return HookResult()
    tool, value = data.get("tool_name"), data.get("tool_input")
    rule = RULES.get(tool) if isinstance(tool, str) else None
    if rule is None:
        return HookResult()
    return rule(value if isinstance(value, dict) else {})


async def mount(coordinator, config):
    undo = [
        coordinator.hooks.on(event, judge, 11, "table-gate", on_failure="deny")
        for event in config.get("events", ("tool:pre",))
    ]
    logger.info("table-gate registered %d handlers", len(undo))

    async def cleanup():
        for each in undo:
            each()

    return cleanup
