"""The event catalogue: every event with its payload, who emits it and which verdicts count there.

`ALL_EVENTS` are the canonical names, shared with published modules and in their order. `OUR_EVENTS` are what this
kernel adds, kept out of that list because other programs compare it. Modules may emit names of their own; they announce
them on the contribution channel ``observability.events``. Registering a handler for a name that is not here but nearly is,
such as ``tool:per``, emits an `amplifier.errors.MisspellingWarning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = [
    "ALL_EVENTS",
    "APPROVAL_DENIED",
    "APPROVAL_GRANTED",
    "APPROVAL_REQUIRED",
    "ARTIFACT_READ",
    "ARTIFACT_WRITE",
    "BUDGET_EXCEEDED",
    "BUDGET_WARNING",
    "CANCEL_COMPLETED",
    "CANCEL_REQUESTED",
    "CATALOGUE",
    "CLEANUP_FAILED",
    "COMMON_KEYS",
    "CONTENT_BLOCK_DELTA",
    "CONTENT_BLOCK_END",
    "CONTENT_BLOCK_START",
    "CONTEXT_COMPACTION",
    "CONTEXT_INCLUDE",
    "CONTEXT_POST_COMPACT",
    "CONTEXT_PRE_COMPACT",
    "EXECUTION_END",
    "EXECUTION_START",
    "HOOK_FAILED",
    "HOOK_TIMEOUT",
    "KERNEL_EVENTS",
    "LLM_REQUEST",
    "LLM_RESPONSE",
    "MODULE_CRASHED",
    "MODULE_LOAD_FAILED",
    "MODULE_ON_SESSION_READY_FAILED",
    "MODULE_UNRESPONSIVE",
    "ORCHESTRATOR_COMPLETE",
    "OUR_EVENTS",
    "PLAN_END",
    "PLAN_START",
    "POLICY_VIOLATION",
    "PROMPT_COMPLETE",
    "PROMPT_SUBMIT",
    "PROVIDER_ERROR",
    "PROVIDER_REQUEST",
    "PROVIDER_RESOLVE",
    "PROVIDER_RESPONSE",
    "PROVIDER_RETRY",
    "PROVIDER_THROTTLE",
    "PROVIDER_TOOL_SEQUENCE_REPAIRED",
    "SESSION_CONFIG",
    "SESSION_END",
    "SESSION_FORK",
    "SESSION_RESUME",
    "SESSION_START",
    "TERMINAL_EVENTS",
    "THINKING_DELTA",
    "THINKING_FINAL",
    "TOOL_ERROR",
    "TOOL_POST",
    "TOOL_PRE",
    "TRACE_ROLES",
    "TURN_RESUMED",
    "USER_NOTIFICATION",
    "Emitter",
    "Event",
    "TraceRole",
    "Verdict",
]

Emitter = Literal["kernel", "orchestrator", "provider", "context", "module"]
Verdict = Literal["deny", "ask_user", "inject_context", "modify"]
TraceRole = Literal["invoke_agent", "chat", "execute_tool", "event", "session", "none"]
"""What an event becomes in a trace: part of the span of a turn, a model call or a tool call; an event of the innermost open span;
nothing but the session's id, because it happens between turns; or nothing, because there are too many of its kind."""


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the catalogue.

    Attributes:
        name: What `emit` is called with.
        keys: The payload keys a listener may look for, besides `COMMON_KEYS`; an emitter leaves out what it does not
            know.
        emitted_by: Whose duty it is to emit it; others may too.
        verdict: The actions the emitter acts upon; none when every verdict is ignored. A ``modify`` is always seen by
            the handlers that follow in the same dispatch, whatever is written here.
        summary: When it is emitted, in one sentence.
        terminal: Whether it is delivered even while the turn is being cancelled.
        same: Keys that are names of one value: what a handler writes under one of them, the handlers that follow and the
            emitter find under all that the payload has.
    """

    name: str
    keys: tuple[str, ...]
    emitted_by: Emitter
    verdict: tuple[Verdict, ...]
    summary: str
    terminal: bool = False
    same: tuple[str, ...] = ()


COMMON_KEYS: Final = ("session_id", "parent_id", "timestamp", "parent_call_id")
"""What the kernel itself puts into every payload; no module can forge them.

``parent_call_id`` is there only if the session runs inside a call of another session: the id of the tool call that runs it.
"""

# ── the canonical names ──────────────────────────────────────────────────────────────────────────

SESSION_START: Final = "session:start"
SESSION_END: Final = "session:end"
SESSION_FORK: Final = "session:fork"
SESSION_RESUME: Final = "session:resume"
PROMPT_SUBMIT: Final = "prompt:submit"
PROMPT_COMPLETE: Final = "prompt:complete"
PLAN_START: Final = "plan:start"
PLAN_END: Final = "plan:end"
PROVIDER_REQUEST: Final = "provider:request"
PROVIDER_RESPONSE: Final = "provider:response"
PROVIDER_RETRY: Final = "provider:retry"
PROVIDER_ERROR: Final = "provider:error"
PROVIDER_THROTTLE: Final = "provider:throttle"
PROVIDER_TOOL_SEQUENCE_REPAIRED: Final = "provider:tool_sequence_repaired"
PROVIDER_RESOLVE: Final = "provider:resolve"
LLM_REQUEST: Final = "llm:request"
LLM_RESPONSE: Final = "llm:response"
CONTENT_BLOCK_START: Final = "content_block:start"
CONTENT_BLOCK_DELTA: Final = "content_block:delta"
CONTENT_BLOCK_END: Final = "content_block:end"
THINKING_DELTA: Final = "thinking:delta"
THINKING_FINAL: Final = "thinking:final"
TOOL_PRE: Final = "tool:pre"
TOOL_POST: Final = "tool:post"
TOOL_ERROR: Final = "tool:error"
CONTEXT_PRE_COMPACT: Final = "context:pre_compact"
CONTEXT_POST_COMPACT: Final = "context:post_compact"
CONTEXT_COMPACTION: Final = "context:compaction"
CONTEXT_INCLUDE: Final = "context:include"
ORCHESTRATOR_COMPLETE: Final = "orchestrator:complete"
EXECUTION_START: Final = "execution:start"
EXECUTION_END: Final = "execution:end"
USER_NOTIFICATION: Final = "user:notification"
ARTIFACT_WRITE: Final = "artifact:write"
ARTIFACT_READ: Final = "artifact:read"
POLICY_VIOLATION: Final = "policy:violation"
APPROVAL_REQUIRED: Final = "approval:required"
APPROVAL_GRANTED: Final = "approval:granted"
APPROVAL_DENIED: Final = "approval:denied"
CANCEL_REQUESTED: Final = "cancel:requested"
CANCEL_COMPLETED: Final = "cancel:completed"
MODULE_ON_SESSION_READY_FAILED: Final = "module:on_session_ready_failed"
MODULE_LOAD_FAILED: Final = "module:load_failed"

# ── ours ─────────────────────────────────────────────────────────────────────────────────────────

SESSION_CONFIG: Final = "session:config"
MODULE_UNRESPONSIVE: Final = "module:unresponsive"
HOOK_TIMEOUT: Final = "hook:timeout"
HOOK_FAILED: Final = "hook:failed"
MODULE_CRASHED: Final = "module:crashed"
CLEANUP_FAILED: Final = "cleanup:failed"
TURN_RESUMED: Final = "turn:resumed"
BUDGET_WARNING: Final = "budget:warning"
BUDGET_EXCEEDED: Final = "budget:exceeded"

# ── the table ────────────────────────────────────────────────────────────────────────────────────

_ANY_VERDICT: Final[tuple[Verdict, ...]] = ("deny", "ask_user", "inject_context", "modify")
_BLOCK: Final = ("block_index", "total_blocks")

_CANONICAL: Final = (
    Event(SESSION_START, ("metadata",), "kernel", (), "Once, before the first turn of a new session."),
    Event(SESSION_END, ("status",), "kernel", (), "Once, on closing, while hooks are still live.", terminal=True),
    Event(SESSION_FORK, ("parent", "metadata", "raw"), "kernel", (), "A session with a parent has been opened."),
    Event(SESSION_RESUME, ("metadata",), "kernel", (), "Instead of session:start when the session is resumed."),
    Event(PROMPT_SUBMIT, ("prompt",), "orchestrator", _ANY_VERDICT, "A prompt came in and is not stored yet."),
    Event(
        PROMPT_COMPLETE,
        ("prompt", "response_preview", "length"),
        "orchestrator",
        (),
        "The answer to a prompt is complete.",
    ),
    Event(PLAN_START, ("plan",), "orchestrator", (), "A planning phase begins."),
    Event(PLAN_END, ("plan",), "orchestrator", (), "A planning phase is over."),
    Event(
        PROVIDER_REQUEST,
        ("provider", "model", "messages", "iteration"),
        "orchestrator",
        ("deny", "ask_user", "inject_context"),
        "A model is about to be asked.",
    ),
    Event(
        PROVIDER_RESPONSE,
        ("provider", "model", "response", "usage", "tool_calls"),
        "orchestrator",
        (),
        "A model has answered.",
    ),
    Event(
        PROVIDER_RETRY,
        ("provider", "model", "attempt", "max_retries", "delay", "error_type", "error_message"),
        "provider",
        (),
        "A call failed and will be repeated after a delay.",
    ),
    Event(
        PROVIDER_ERROR,
        ("provider", "model", "error", "retryable", "status_code"),
        "orchestrator",
        (),
        "A call failed for good, or its answer could not be parsed; the error leaves the turn with its own type.",
    ),
    Event(
        PROVIDER_THROTTLE, ("provider", "model", "delay", "reason"), "provider", (), "A call waits for a rate limit."
    ),
    Event(
        PROVIDER_TOOL_SEQUENCE_REPAIRED,
        ("provider", "repair_count", "repairs"),
        "provider",
        (),
        "Tool calls without a result were completed before sending.",
    ),
    Event(PROVIDER_RESOLVE, ("provider", "model"), "orchestrator", (), "A provider was chosen for the turn."),
    Event(LLM_REQUEST, ("provider", "model", "message_count", "raw"), "provider", (), "A request goes over the wire."),
    Event(
        LLM_RESPONSE,
        ("provider", "model", "usage", "duration_ms", "status", "raw"),
        "provider",
        (),
        "A response came over the wire; usage holds input_, output_, cache_read_ and cache_write_tokens.",
    ),
    Event(CONTENT_BLOCK_START, ("block_type", *_BLOCK, "metadata"), "orchestrator", (), "A content block begins."),
    Event(
        CONTENT_BLOCK_DELTA, ("block_type", "block_index", "delta"), "orchestrator", (), "A piece of a block arrived."
    ),
    Event(CONTENT_BLOCK_END, ("block", *_BLOCK, "usage"), "orchestrator", (), "A content block is complete."),
    Event(THINKING_DELTA, ("block_index", "delta"), "provider", (), "A piece of the model's thinking arrived."),
    Event(THINKING_FINAL, ("block_index", "text"), "provider", (), "A block of the model's thinking is complete."),
    Event(
        TOOL_PRE,
        ("tool_name", "tool_call_id", "tool_input", "parallel_group_id"),
        "orchestrator",
        _ANY_VERDICT,
        "A tool is about to run.",
    ),
    # The contract documents have tool_result, published modules read result: emitters write the same value under both.
    # A denial withholds the result from the model; without that a redaction gate that fails would fail open.
    Event(
        TOOL_POST,
        ("tool_name", "tool_call_id", "tool_input", "tool_result", "result", "parallel_group_id"),
        "orchestrator",
        ("deny", "inject_context", "modify"),
        "A tool has returned; tool_result and result are the same value.",
        same=("result", "tool_result"),
    ),
    Event(
        TOOL_ERROR,
        ("tool_name", "tool_call_id", "tool_input", "error", "parallel_group_id"),
        "orchestrator",
        (),
        "A tool raised, was cancelled or could not be run; the model gets an error result.",
        terminal=True,
    ),
    Event(
        CONTEXT_PRE_COMPACT, ("message_count", "token_count"), "context", (), "A compacted view is about to be made."
    ),
    Event(CONTEXT_POST_COMPACT, ("message_count", "token_count"), "context", (), "A compacted view has been made."),
    Event(
        CONTEXT_COMPACTION,
        ("before_messages", "after_messages", "before_tokens", "after_tokens", "budget"),
        "context",
        (),
        "One record of a compaction, before and after.",
    ),
    Event(CONTEXT_INCLUDE, ("source", "content"), "context", (), "Material from elsewhere was put into the context."),
    Event(
        ORCHESTRATOR_COMPLETE,
        ("orchestrator", "turn_count", "status"),
        "orchestrator",
        (),
        "The loop has ended; status is success, incomplete or cancelled.",
        terminal=True,
    ),
    Event(EXECUTION_START, ("prompt",), "orchestrator", (), "The first event of a turn."),
    Event(
        EXECUTION_END,
        ("response", "status"),
        "orchestrator",
        (),
        "On every way out of a turn; status is completed, cancelled or error.",
        terminal=True,
    ),
    Event(USER_NOTIFICATION, ("message", "level", "source"), "module", (), "A module has a message for the user."),
    Event(ARTIFACT_WRITE, ("path", "bytes"), "module", (), "A file was written for the user."),
    Event(ARTIFACT_READ, ("path", "bytes"), "module", (), "A file of the user's was read."),
    Event(
        POLICY_VIOLATION, ("policy", "detail", "tool_name"), "module", (), "Something was attempted against a policy."
    ),
    Event(
        APPROVAL_REQUIRED,
        ("hook_name", "event", "prompt", "options", "timeout", "default", "tool_name", "action", "risk_level"),
        "kernel",
        (),
        "The user is being asked; the last three keys come from modules that ask by themselves.",
    ),
    Event(
        APPROVAL_GRANTED,
        ("hook_name", "event", "prompt", "options", "reason", "remembered", "tool_name"),
        "kernel",
        (),
        "The question was answered with yes, now or earlier in this session.",
    ),
    Event(
        APPROVAL_DENIED,
        ("hook_name", "event", "prompt", "options", "reason", "remembered", "tool_name"),
        "kernel",
        (),
        "The question was answered with no, not at all, or could not be asked.",
    ),
    Event(
        CANCEL_REQUESTED,
        ("state", "grace", "reason", "running_tools"),
        "kernel",
        (),
        "Once per request to stop; state is graceful or immediate.",
        terminal=True,
    ),
    Event(
        CANCEL_COMPLETED,
        ("was_immediate", "error"),
        "kernel",
        (),
        "Once per cancelled turn, when everything has unwound.",
        terminal=True,
    ),
    Event(
        MODULE_ON_SESSION_READY_FAILED,
        ("module_id", "error"),
        "kernel",
        (),
        "A module's on_session_ready raised or overran its deadline.",
    ),
    Event(
        MODULE_LOAD_FAILED,
        ("module_type", "module_id", "instance_id", "error", "reason_code"),
        "kernel",
        (),
        "A provider, tool or hook could not be loaded or mounted; emitted once all hooks are mounted.",
    ),
)

_OURS: Final = (
    Event(
        SESSION_CONFIG, ("raw",), "kernel", (), "Per turn when the plan asks for it: the whole plan, secrets removed."
    ),
    Event(
        MODULE_UNRESPONSIVE,
        ("module_id", "operation", "task", "awaiting", "seconds"),
        "kernel",
        (),
        "Code refuses cancellation; repeated at growing intervals for as long as it does.",
    ),
    Event(
        HOOK_TIMEOUT,
        ("module_id", "hook_name", "event", "seconds", "awaiting", "on_failure"),
        "kernel",
        (),
        "A handler overran its deadline and was cancelled.",
    ),
    Event(
        HOOK_FAILED,
        ("module_id", "hook_name", "event", "error", "error_type", "on_failure"),
        "kernel",
        (),
        "A handler raised or answered with something that is no result.",
    ),
    Event(
        MODULE_CRASHED,
        ("module_id", "task", "error", "error_type", "fatal"),
        "kernel",
        (),
        "A background task of a module crashed.",
    ),
    Event(
        CLEANUP_FAILED,
        ("module_id", "cleanup", "error", "error_type", "abandoned", "seconds"),
        "kernel",
        (),
        "A cleanup raised, or was abandoned at its deadline.",
    ),
    Event(
        TURN_RESUMED,
        ("iteration", "calls"),
        "orchestrator",
        (),
        "A turn that was cut off goes on; the outcome of each of its open tool calls is kept, started, repeated or interrupted.",
    ),
    Event(
        BUDGET_WARNING,
        ("what", "limit", "used", "share"),
        "kernel",
        (),
        "Once per limit of session.budget, when the share warn_at of it is used; in the session whose limit it is.",
    ),
    Event(
        BUDGET_EXCEEDED,
        ("what", "limit", "used", "requested", "refused_session_id"),
        "kernel",
        (),
        "A call did not fit into session.budget and was refused; the turn of refused_session_id ends with BudgetExceeded.",
        terminal=True,
    ),
)

CATALOGUE: Final[Mapping[str, Event]] = MappingProxyType({event.name: event for event in (*_CANONICAL, *_OURS)})
"""Every event by name, the canonical ones first."""

ALL_EVENTS: Final[list[str]] = [event.name for event in _CANONICAL]
"""The canonical names in canonical order; a list, because published code concatenates it with lists."""

OUR_EVENTS: Final[list[str]] = [event.name for event in _OURS]
"""What this kernel emits beyond the canonical names."""

KERNEL_EVENTS: Final[list[str]] = [event.name for event in CATALOGUE.values() if event.emitted_by == "kernel"]
"""What the kernel itself emits, canonical or not; the rest is the duty of modules."""

TERMINAL_EVENTS: Final[frozenset[str]] = frozenset(event.name for event in CATALOGUE.values() if event.terminal)
"""What is always delivered: its dispatch is shielded and bounded, so that the record of a cancelled turn is complete."""

TRACE_ROLES: Final[Mapping[str, TraceRole]] = MappingProxyType(
    {
        **dict.fromkeys((EXECUTION_START, EXECUTION_END, ORCHESTRATOR_COMPLETE), "invoke_agent"),
        **dict.fromkeys((PROVIDER_REQUEST, PROVIDER_RESPONSE, LLM_REQUEST, LLM_RESPONSE), "chat"),
        **dict.fromkeys((TOOL_PRE, TOOL_POST, TOOL_ERROR), "execute_tool"),
        **dict.fromkeys((PROMPT_SUBMIT, PROMPT_COMPLETE, PLAN_START, PLAN_END, TURN_RESUMED), "event"),
        **dict.fromkeys((BUDGET_WARNING, BUDGET_EXCEEDED), "event"),
        **dict.fromkeys((PROVIDER_RESOLVE, PROVIDER_RETRY, PROVIDER_ERROR, PROVIDER_THROTTLE), "event"),
        PROVIDER_TOOL_SEQUENCE_REPAIRED: "event",
        **dict.fromkeys((CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT, CONTEXT_COMPACTION, CONTEXT_INCLUDE), "event"),
        **dict.fromkeys((USER_NOTIFICATION, ARTIFACT_WRITE, ARTIFACT_READ, POLICY_VIOLATION), "event"),
        **dict.fromkeys((APPROVAL_REQUIRED, APPROVAL_GRANTED, APPROVAL_DENIED, CANCEL_REQUESTED), "event"),
        **dict.fromkeys((MODULE_UNRESPONSIVE, MODULE_CRASHED, HOOK_TIMEOUT, HOOK_FAILED), "event"),
        **dict.fromkeys((SESSION_START, SESSION_RESUME, SESSION_FORK, SESSION_END, SESSION_CONFIG), "session"),
        **dict.fromkeys(
            (MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED, CLEANUP_FAILED, CANCEL_COMPLETED), "session"
        ),
        **dict.fromkeys((CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END), "none"),
        **dict.fromkeys((THINKING_DELTA, THINKING_FINAL), "none"),
    }
)
"""What every event of the catalogue becomes in a trace."""
