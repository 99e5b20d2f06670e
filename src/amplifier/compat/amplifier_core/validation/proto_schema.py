"""Checking results in the form of plain dicts."""

from __future__ import annotations

from typing import Any

__all__ = [
    "VALID_APPROVAL_DEFAULTS",
    "VALID_CONTEXT_INJECTION_ROLES",
    "VALID_HOOK_ACTIONS",
    "VALID_USER_MESSAGE_LEVELS",
    "validate_hook_result",
    "validate_tool_result",
]

VALID_HOOK_ACTIONS = frozenset({"continue", "deny", "modify", "inject_context", "ask_user"})
VALID_CONTEXT_INJECTION_ROLES = frozenset({"system", "user", "assistant"})
VALID_APPROVAL_DEFAULTS = frozenset({"allow", "deny"})
VALID_USER_MESSAGE_LEVELS = frozenset({"info", "warning", "error"})


def validate_tool_result(data: dict[str, Any]) -> list[str]:
    """What is wrong with a tool's result; nothing if the list is empty."""
    if "success" not in data:
        return ["Missing required field: 'success'"]
    if not isinstance(data["success"], bool):
        return [f"Field 'success' must be bool, got {type(data['success']).__name__}"]
    return []


def validate_hook_result(data: dict[str, Any]) -> list[str]:
    """What is wrong with a hook's result; nothing if the list is empty."""
    rules = (
        ("action", VALID_HOOK_ACTIONS),
        ("context_injection_role", VALID_CONTEXT_INJECTION_ROLES),
        ("user_message_level", VALID_USER_MESSAGE_LEVELS),
        ("approval_default", VALID_APPROVAL_DEFAULTS),
    )
    found = []
    for name, allowed in rules:
        value = data.get(name, "continue" if name == "action" else None)
        if (value is not None or name == "action") and value not in allowed:
            found.append(f"Invalid {name} '{value}': must be one of {sorted(allowed)}")
    return found
