"""A gate: asks or denies by rules from the plan, compiled once; works on whatever it is given.

Denials have no reason.
"""

import logging
import re

from amplifier import HookResult

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)

RULES = [
    {"pattern": r"rm\s+-rf", "action": "deny", "why": "removes files for good"},
    {"pattern": r"\bsudo\b", "action": "ask", "why": "needs more rights"},
    {"pattern": r"/etc/(passwd|shadow)", "action": "deny", "why": "reads accounts"},
]


def texts(value, depth=0):
    """Every text inside a value, however deep, without recursion."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            pending.extend(each.keys())
            pending.extend(each.values())
        elif isinstance(each, (list, tuple)):
            pending.extend(each)


def gate(rules, counts):
    compiled = [(re.compile(rule["pattern"]), rule) for rule in rules]

    async def check(event: str, data: dict) -> HookResult:
        given = data.get("tool_input")
        for text in texts(given):
            for pattern, rule in compiled:
                if not pattern.search(text):
                    continue
                counts[rule["action"]] = counts.get(rule["action"], 0) + 1
                if rule["action"] == "deny":
                    return HookResult(action="deny", reason="")
                return HookResult(
                    action="ask_user",
                    approval_prompt=f"{data.get('tool_name')} {rule['why']}. Allow it?",
                    approval_options=["Allow", "Deny"],
                    approval_timeout=60.0,
                    approval_default="deny",
                    reason=rule["why"],
                )
        return HookResult(action="continue")

    return check


async def mount(coordinator, config):
    counts = {}
    check = gate(config.get("rules", RULES), counts)
    events = config.get("events") or ["tool:pre"]
    removers = [
        coordinator.hooks.register(event, check, priority=10, name=f"command-rules-{number}", on_failure="deny")
        for number, event in enumerate(events)
    ]
    logger.info("command rules guard %s", ", ".join(events))
    coordinator.register_capability("command-rules.counts", counts)

    async def cleanup():
        for remove in removers:
            remove()
        removers.clear()

    return cleanup
