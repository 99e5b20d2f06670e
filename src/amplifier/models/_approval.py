"""Requests for a person's approval, and the responses."""

from __future__ import annotations

from typing import Any

import attrs

from amplifier.models._definition.base import Model
from amplifier.models._definition.decorator import checked, model


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise ValueError(f"expected seconds greater than 0, or None to wait for ever; got {seconds!r}")
    return seconds


@model
class ApprovalRequest(Model):
    """A request for approval of a tool call.

    Attributes:
        tool_name: The tool that wants to run.
        action: What it would do, for people.
        details: More about it, for programs that show it.
        risk_level: The risk, in the requester's words.
        timeout: Seconds to wait for the response; None waits for ever.
    """

    tool_name: str
    action: str
    details: dict[str, Any] = attrs.field(factory=dict)
    risk_level: str
    timeout: float | None = checked(_positive, default=None)


@model
class ApprovalResponse(Model):
    """A person's decision.

    Attributes:
        approved: Yes or no.
        reason: Why, for logs and for the model.
        remember: Apply the decision to the same request from now on.
    """

    approved: bool
    reason: str | None = None
    remember: bool = False
