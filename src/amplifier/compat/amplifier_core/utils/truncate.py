"""Redact and truncate values for a log by the published rules.

Our redaction covers more names and searches texts. Published modules and their suites rely on these
rules, which cover exact names in dicts and lists.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

__all__ = ["SENSITIVE_KEYS", "redact_secrets", "truncate_values"]

SENSITIVE_KEYS = frozenset(
    {
        "api-key",
        "api_key",
        "apikey",
        "auth",
        "authorization",
        "credential",
        "credentials",
        "password",
        "private_key",
        "privatekey",
        "secret",
        "token",
    }
)

_REDACTED = "[REDACTED]"


def redact_secrets(obj: Any, sensitive_keys: Collection[str] = SENSITIVE_KEYS) -> Any:
    """Return a copy in which every member with a sensitive name is redacted.

    Args:
        obj: The value. Dicts and lists are copied, and everything else is shared.
        sensitive_keys: Names in lower case.
    """
    if isinstance(obj, dict):
        return {
            key: _REDACTED
            if isinstance(key, str) and key.lower() in sensitive_keys
            else redact_secrets(value, sensitive_keys)
            for key, value in obj.items()
        }
    if isinstance(obj, list):
        return [redact_secrets(item, sensitive_keys) for item in obj]
    return obj


def truncate_values(obj: Any, max_length: int = 180) -> Any:
    """Return a copy in which long texts are cut, each with the number of missing characters."""
    if isinstance(obj, dict):
        return {key: truncate_values(value, max_length) for key, value in obj.items()}
    if isinstance(obj, list):
        return [truncate_values(item, max_length) for item in obj]
    if isinstance(obj, str) and len(obj) > max_length:
        return f"{obj[:max_length]}... (truncated {len(obj) - max_length} chars)"
    return obj
