"""Removes secrets from results of tools before the model sees them.

Fault: the walk enters dicts but not lists; a secret inside of a list of results passes as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from amplifier import HookResult

__amplifier_module_type__ = "hook"

PATTERNS = [
    re.compile(r"sk-[A-Za-z0-9]{16,}"),
    re.compile(r"AKIA[0-9A-Z]{16}"),
    re.compile(r"ghp_[A-Za-z0-9]{36}"),
]
MASK = "[REDACTED]"


def masked(text: str) -> str:
    for pattern in PATTERNS:
        text = pattern.sub(MASK, text)
    return text


def redact(value: Any) -> Any:
    """A copy without secrets."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: redact(member) for key, member in value.items()}
    return value


class RedactHook:
    """Watches what tools return."""

    async def on_tool_post(self, event: str, data: dict[str, Any]) -> HookResult:
        if "result" not in data:
            return HookResult(action="continue")
        cleaned = redact(data["result"])
        if cleaned == data["result"]:
            return HookResult(action="continue")
        return HookResult(action="modify", data={**data, "result": cleaned})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Callable[[], None]:
    hook = RedactHook()
    return coordinator.hooks.register("tool:post", hook.on_tool_post, priority=10, name="hooks-redact-keys")
