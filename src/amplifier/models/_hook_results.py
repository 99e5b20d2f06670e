"""Results of hooks, and requests for a person's approval."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from ._base import Model, checked, model

HookAction: TypeAlias = Literal["continue", "deny", "modify", "inject_context", "ask_user"]
"""What a hook requests."""

ContextInjectionRole: TypeAlias = Literal["system", "user", "assistant"]
"""The role of the message that a hook injects."""

ApprovalDefault: TypeAlias = Literal["allow", "deny"]
"""What an approval without an answer in time means."""

UserMessageLevel: TypeAlias = Literal["info", "warning", "error"]
"""The level of a hook's message to the user."""


@model
class ContextInjection(Model):
    """One text that a hook injects into the context, and its origin.

    Attributes:
        content: The text.
        role: The role of the injected message.
        ephemeral: For the next request only; not stored in the context.
        append_to_last_tool_result: If ephemeral, at the end of the newest tool result rather than as a message of its own.
        hook_name: The hook that injects it.
        event: The event on which it was injected.
    """

    content: str
    role: ContextInjectionRole = "system"
    ephemeral: bool = False
    append_to_last_tool_result: bool = False
    hook_name: str = "unknown"
    event: str = ""


@model
class ApprovalGate(Model):
    """One question of one hook; `HookResult.approval_gates` holds them in the order they must be asked.

    Attributes:
        hook_name: The hook that asks.
        prompt: The question.
        options: The answers on offer; "Allow" and "Deny" if absent.
        timeout: Seconds to wait.
        default: What no answer in time means.
    """

    hook_name: str = "unknown"
    prompt: str | None = None
    options: list[str] | None = None
    timeout: float = 300.0
    default: ApprovalDefault = "deny"


class _Merged(Model):
    """What the kernel records on a merged result beside its data: not a field, not compared, not written as JSON.

    Attributes:
        modified: Some handler changed the payload, whatever action won; unset on results that were not merged.
    """

    __slots__ = ("modified",)

    modified: bool


@model
class HookResult(_Merged):
    """The result of a hook, or the merged result of all hooks of one event.

    Attributes:
        action: What the hook requests.
        data: The whole new payload for ``modify``; in a merged result, the final payload.
        reason: Why, for ``deny``; for the model and the logs.
        context_injection: Text for the model, for ``inject_context``.
        context_injection_role: The role of the injected message.
        ephemeral: For the next request only; not stored in the context.
        approval_prompt: The question, for ``ask_user``.
        approval_options: The answers on offer; "Allow" and "Deny" if absent.
        approval_timeout: Seconds to wait.
        approval_default: What no answer in time means.
        suppress_output: Ask the application not to show this.
        user_message: Something to show the user, whatever the action.
        user_message_level: Its level.
        user_message_source: The source to show; the hook if absent.
        append_to_last_tool_result: If ephemeral, at the end of the newest tool result rather than as a message of its own.
        context_injections: Every injection in order; the scalar fields are their joined form.
        approval_gates: Every question in order; the scalar fields are the first one's.
    """

    action: HookAction = "continue"
    data: dict[str, Any] | None = None
    reason: str | None = None
    context_injection: str | None = None
    context_injection_role: ContextInjectionRole = "system"
    ephemeral: bool = False
    approval_prompt: str | None = None
    approval_options: list[str] | None = None
    approval_timeout: float = 300.0
    approval_default: ApprovalDefault = "deny"
    suppress_output: bool = False
    user_message: str | None = None
    user_message_level: UserMessageLevel = "info"
    user_message_source: str | None = None
    append_to_last_tool_result: bool = False
    context_injections: list[ContextInjection] = attrs.field(factory=list)
    approval_gates: list[ApprovalGate] = attrs.field(factory=list)


# ── approvals ────────────────────────────────────────────────────────────────────────────────────


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
