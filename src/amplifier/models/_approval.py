"""A question to a person, and the answer."""

from __future__ import annotations

from typing import Any

import attrs

from ._base import Model, checked, model


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise ValueError(f"expected seconds greater than 0, or None to wait for ever; got {seconds!r}")
    return seconds


@model
class ApprovalRequest(Model):
    """May this happen? `timeout` None waits for ever."""

    tool_name: str
    action: str
    details: dict[str, Any] = attrs.field(factory=dict)
    risk_level: str
    timeout: float | None = checked(_positive, default=None)


@model
class ApprovalResponse(Model):
    """A person's decision."""

    approved: bool
    reason: str | None = None
    remember: bool = False
