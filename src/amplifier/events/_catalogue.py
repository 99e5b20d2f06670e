"""The rows of the catalogue: names, payloads, emitters, verdicts and places in a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from . import payloads

Emitter = Literal["kernel", "orchestrator", "provider", "context", "module"]
Verdict = Literal["deny", "ask_user", "inject_context", "modify"]
TraceRole = Literal["invoke_agent", "chat", "execute_tool", "event", "session", "none"]
"""The place of an event in a trace.

``invoke_agent``, ``chat`` and ``execute_tool`` are part of the span of a turn, a model call or a
tool call. ``event`` is an event of the innermost open span. ``session`` adds only the session's id,
because the event happens between turns. ``none`` is left out, because there are too many.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the catalogue.

    Attributes:
        name: Name of the event, for `emit`.
        payload: TypedDict of the payload.
        emitted_by: The part that must emit the event. Others may emit it too.
        verdict: Actions that the emitter carries out. If there are none, every verdict is ignored.
            A ``modify`` always reaches the later handlers of a dispatch, whatever is listed here.
        terminal: True if the event is delivered even while the turn is being cancelled.
        same: Keys that share one value. A value that a handler writes under one of them is written
            under all of them that are in the payload. A key that the handler leaves out is
            unchanged.
    """

    name: str
    payload: type
    emitted_by: Emitter
    verdict: tuple[Verdict, ...] = ()
    terminal: bool = False
    same: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Possible keys of the payload besides `COMMON_KEYS`. An emitter may leave some out."""
        return tuple(key for key in self.payload.__annotations__ if key not in COMMON_KEYS)

    @property
    def summary(self) -> str:
        """The moment of the event in a sentence or two, or an empty text under ``python -OO``."""
        return " ".join((self.payload.__doc__ or "").partition(": ")[2].split())


COMMON_KEYS: Final = tuple(payloads.EventPayload.__annotations__)
"""The keys that the kernel puts into every payload. No module can forge them."""

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
CONTENT_BLOCK_RESET: Final = "content_block:reset"
BUDGET_WARNING: Final = "budget:warning"
BUDGET_EXCEEDED: Final = "budget:exceeded"
ORCHESTRATOR_STEERING_INJECTED: Final = "orchestrator:steering_injected"
PROVIDER_REFUSAL: Final = "provider:refusal"
CONTEXT_CACHE_BREAK: Final = "context:cache_break"
LLM_STREAM_BLOCK_START: Final = "llm:stream_block_start"
LLM_STREAM_BLOCK_DELTA: Final = "llm:stream_block_delta"
LLM_STREAM_BLOCK_END: Final = "llm:stream_block_end"
LLM_STREAM_ABORTED: Final = "llm:stream_aborted"

# ── the table ────────────────────────────────────────────────────────────────────────────────────

_ANY_VERDICT: Final[tuple[Verdict, ...]] = ("deny", "ask_user", "inject_context", "modify")

_CANONICAL: Final = (
    Event(SESSION_START, payloads.SessionStartPayload, "kernel"),
    Event(SESSION_END, payloads.SessionEndPayload, "kernel", terminal=True),
    Event(SESSION_FORK, payloads.SessionForkPayload, "kernel"),
    Event(SESSION_RESUME, payloads.SessionResumePayload, "kernel"),
    Event(PROMPT_SUBMIT, payloads.PromptSubmitPayload, "orchestrator", _ANY_VERDICT),
    Event(PROMPT_COMPLETE, payloads.PromptCompletePayload, "orchestrator"),
    Event(PLAN_START, payloads.PlanStartPayload, "orchestrator"),
    Event(PLAN_END, payloads.PlanEndPayload, "orchestrator"),
    Event(
        PROVIDER_REQUEST,
        payloads.ProviderRequestPayload,
        "orchestrator",
        ("deny", "ask_user", "inject_context"),
    ),
    Event(PROVIDER_RESPONSE, payloads.ProviderResponsePayload, "orchestrator"),
    Event(PROVIDER_RETRY, payloads.ProviderRetryPayload, "provider"),
    Event(PROVIDER_ERROR, payloads.ProviderErrorPayload, "orchestrator"),
    Event(PROVIDER_THROTTLE, payloads.ProviderThrottlePayload, "provider"),
    Event(
        PROVIDER_TOOL_SEQUENCE_REPAIRED,
        payloads.ProviderToolSequenceRepairedPayload,
        "provider",
    ),
    Event(PROVIDER_RESOLVE, payloads.ProviderResolvePayload, "orchestrator"),
    Event(LLM_REQUEST, payloads.LlmRequestPayload, "provider"),
    Event(LLM_RESPONSE, payloads.LlmResponsePayload, "provider"),
    Event(CONTENT_BLOCK_START, payloads.ContentBlockStartPayload, "orchestrator"),
    Event(CONTENT_BLOCK_DELTA, payloads.ContentBlockDeltaPayload, "orchestrator"),
    Event(CONTENT_BLOCK_END, payloads.ContentBlockEndPayload, "orchestrator"),
    Event(THINKING_DELTA, payloads.ThinkingDeltaPayload, "provider"),
    Event(THINKING_FINAL, payloads.ThinkingFinalPayload, "provider"),
    # With a single name here, a handler that leaves out the input has not changed it.
    Event(TOOL_PRE, payloads.ToolPrePayload, "orchestrator", _ANY_VERDICT, same=("tool_input",)),
    # The contract documents have `tool_result`, but published modules read `result`, so emitters
    # write the same value under both. A denial withholds the result from the model. Otherwise a
    # redaction gate that fails would fail open.
    Event(
        TOOL_POST,
        payloads.ToolPostPayload,
        "orchestrator",
        ("deny", "inject_context", "modify"),
        same=("result", "tool_result"),
    ),
    Event(TOOL_ERROR, payloads.ToolErrorPayload, "orchestrator", terminal=True),
    Event(CONTEXT_PRE_COMPACT, payloads.ContextPreCompactPayload, "context"),
    Event(CONTEXT_POST_COMPACT, payloads.ContextPostCompactPayload, "context"),
    Event(CONTEXT_COMPACTION, payloads.ContextCompactionPayload, "context"),
    Event(CONTEXT_INCLUDE, payloads.ContextIncludePayload, "context"),
    Event(
        ORCHESTRATOR_COMPLETE,
        payloads.OrchestratorCompletePayload,
        "orchestrator",
        terminal=True,
    ),
    Event(EXECUTION_START, payloads.ExecutionStartPayload, "orchestrator"),
    Event(EXECUTION_END, payloads.ExecutionEndPayload, "orchestrator", terminal=True),
    Event(USER_NOTIFICATION, payloads.UserNotificationPayload, "module"),
    Event(ARTIFACT_WRITE, payloads.ArtifactWritePayload, "module"),
    Event(ARTIFACT_READ, payloads.ArtifactReadPayload, "module"),
    Event(POLICY_VIOLATION, payloads.PolicyViolationPayload, "module"),
    Event(APPROVAL_REQUIRED, payloads.ApprovalRequiredPayload, "kernel"),
    Event(APPROVAL_GRANTED, payloads.ApprovalGrantedPayload, "kernel"),
    Event(APPROVAL_DENIED, payloads.ApprovalDeniedPayload, "kernel"),
    Event(CANCEL_REQUESTED, payloads.CancelRequestedPayload, "kernel", terminal=True),
    Event(CANCEL_COMPLETED, payloads.CancelCompletedPayload, "kernel", terminal=True),
    Event(MODULE_ON_SESSION_READY_FAILED, payloads.ModuleOnSessionReadyFailedPayload, "kernel"),
    Event(MODULE_LOAD_FAILED, payloads.ModuleLoadFailedPayload, "kernel"),
)

_OURS: Final = (
    Event(SESSION_CONFIG, payloads.SessionConfigPayload, "kernel"),
    Event(MODULE_UNRESPONSIVE, payloads.ModuleUnresponsivePayload, "kernel"),
    Event(HOOK_TIMEOUT, payloads.HookTimeoutPayload, "kernel"),
    Event(HOOK_FAILED, payloads.HookFailedPayload, "kernel"),
    Event(MODULE_CRASHED, payloads.ModuleCrashedPayload, "kernel"),
    Event(CLEANUP_FAILED, payloads.CleanupFailedPayload, "kernel"),
    Event(TURN_RESUMED, payloads.TurnResumedPayload, "orchestrator"),
    Event(CONTENT_BLOCK_RESET, payloads.ContentBlockResetPayload, "orchestrator"),
    Event(BUDGET_WARNING, payloads.BudgetWarningPayload, "kernel"),
    Event(BUDGET_EXCEEDED, payloads.BudgetExceededPayload, "kernel", terminal=True),
    Event(
        ORCHESTRATOR_STEERING_INJECTED,
        payloads.OrchestratorSteeringInjectedPayload,
        "orchestrator",
    ),
    Event(PROVIDER_REFUSAL, payloads.ProviderRefusalPayload, "orchestrator"),
    Event(CONTEXT_CACHE_BREAK, payloads.ContextCacheBreakPayload, "orchestrator"),
)

# Published providers emit these events. Ours do so for handlers that are registered for them. The
# content_block events report the same.
_OF_PROVIDERS: Final = (
    Event(LLM_STREAM_BLOCK_START, payloads.LlmStreamBlockStartPayload, "provider"),
    Event(LLM_STREAM_BLOCK_DELTA, payloads.LlmStreamBlockDeltaPayload, "provider"),
    Event(LLM_STREAM_BLOCK_END, payloads.LlmStreamBlockEndPayload, "provider"),
    Event(LLM_STREAM_ABORTED, payloads.LlmStreamAbortedPayload, "provider"),
)

_ALL: Final = (*_CANONICAL, *_OURS, *_OF_PROVIDERS)

CATALOGUE: Final[Mapping[str, Event]] = MappingProxyType({event.name: event for event in _ALL})
"""The events by name, the canonical ones first."""

ALL_EVENTS: Final[list[str]] = [event.name for event in _CANONICAL]
"""The canonical names in canonical order. Published code concatenates this list with others."""

OUR_EVENTS: Final[list[str]] = [event.name for event in _OURS]
"""The events of this kernel besides the canonical ones."""

KERNEL_EVENTS: Final[list[str]] = [event.name for event in _ALL if event.emitted_by == "kernel"]
"""The events that the kernel itself emits. Modules emit the others."""

TERMINAL_EVENTS: Final[frozenset[str]] = frozenset(event.name for event in _ALL if event.terminal)
"""The events that are always delivered.

Their dispatch is shielded and bounded, so that the record of a cancelled turn is complete.
"""

TRACE_ROLES: Final[Mapping[str, TraceRole]] = MappingProxyType(
    {
        **dict.fromkeys(CATALOGUE, "event"),
        **dict.fromkeys((EXECUTION_START, EXECUTION_END, ORCHESTRATOR_COMPLETE), "invoke_agent"),
        **dict.fromkeys((PROVIDER_REQUEST, PROVIDER_RESPONSE, LLM_REQUEST, LLM_RESPONSE), "chat"),
        **dict.fromkeys((TOOL_PRE, TOOL_POST, TOOL_ERROR), "execute_tool"),
        **dict.fromkeys((SESSION_START, SESSION_RESUME, SESSION_FORK), "session"),
        **dict.fromkeys((SESSION_END, SESSION_CONFIG), "session"),
        **dict.fromkeys((MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED), "session"),
        **dict.fromkeys((CLEANUP_FAILED, CANCEL_COMPLETED), "session"),
        **dict.fromkeys((CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END), "none"),
        **dict.fromkeys((THINKING_DELTA, THINKING_FINAL), "none"),
        **dict.fromkeys((LLM_STREAM_BLOCK_START, LLM_STREAM_BLOCK_DELTA), "none"),
        **dict.fromkeys((LLM_STREAM_BLOCK_END,), "none"),
    }
)
"""The place of every event of the catalogue in a trace."""
