"""The payloads of events as TypedDicts, one for each event of the catalogue.

Annotate the payload of a handler with the TypedDict of its event. Read keys with ``get``, because
emitters may leave keys out. A value whose form depends on the emitter is typed ``Any``.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class EventPayload(TypedDict, total=False):
    """The keys that the kernel puts into every payload. No module can forge them.

    ``parent_call_id`` is the id of the tool call of another session that runs this session. It is
    missing in all other sessions.
    """

    session_id: str
    parent_id: str | None
    timestamp: str
    parent_call_id: str


class SessionStartPayload(EventPayload, total=False):
    """``session:start``: Once, before the first turn of a new session."""

    metadata: Any


class SessionEndPayload(EventPayload, total=False):
    """``session:end``: Once, on closing, while hooks are still live."""

    status: str


class SessionForkPayload(EventPayload, total=False):
    """``session:fork``: A session with a parent has been opened."""

    parent: str | None
    metadata: Any
    raw: Any


class SessionResumePayload(EventPayload, total=False):
    """``session:resume``: Instead of session:start when the session is resumed."""

    metadata: Any


class PromptSubmitPayload(EventPayload, total=False):
    """``prompt:submit``: A prompt arrived and is not stored yet.

    Attachments describe the parts of the prompt that are not text.
    """

    prompt: str
    attachments: list[dict[str, Any]]


class PromptCompletePayload(EventPayload, total=False):
    """``prompt:complete``: The answer to a prompt is complete."""

    prompt: str
    response_preview: str
    length: int


class PlanStartPayload(EventPayload, total=False):
    """``plan:start``: A planning phase begins."""

    plan: Any


class PlanEndPayload(EventPayload, total=False):
    """``plan:end``: A planning phase is over."""

    plan: Any


class ProviderRequestPayload(EventPayload, total=False):
    """``provider:request``: A model is about to be called."""

    provider: str
    model: str | None
    messages: list[dict[str, Any]]
    iteration: int


class ProviderResponsePayload(EventPayload, total=False):
    """``provider:response``: A model has answered."""

    provider: str
    model: str | None
    response: Any
    usage: dict[str, Any] | None
    tool_calls: Any


class ProviderRetryPayload(EventPayload, total=False):
    """``provider:retry``: A call failed and will be repeated after a delay."""

    provider: str
    model: str | None
    attempt: int
    max_retries: int
    delay: float
    error_type: str
    error_message: str


class ProviderErrorPayload(EventPayload, total=False):
    """``provider:error``: A call failed for good, or its answer could not be parsed.

    The turn raises the error with its own type.
    """

    provider: str
    model: str | None
    error: Any
    retryable: bool
    status_code: int | None


class ProviderRefusalPayload(EventPayload, total=False):
    """``provider:refusal``: The model or its service refused to answer.

    The reason is the one that the service gives, or the name of the error.
    """

    provider: str
    model: str | None
    reason: str | None
    message: str


class ProviderThrottlePayload(EventPayload, total=False):
    """``provider:throttle``: A call waits for a rate limit."""

    provider: str
    model: str | None
    delay: float
    reason: str | None


class ProviderToolSequenceRepairedPayload(EventPayload, total=False):
    """``provider:tool_sequence_repaired``: Tool calls that had no result were given one."""

    provider: str
    repair_count: int
    repairs: list[Any]


class ProviderResolvePayload(EventPayload, total=False):
    """``provider:resolve``: A provider was chosen for the turn."""

    provider: str
    model: str | None


class LlmRequestPayload(EventPayload, total=False):
    """``llm:request``: A request goes over the wire."""

    provider: str
    model: str | None
    message_count: int
    raw: Any


class LlmResponsePayload(EventPayload, total=False):
    """``llm:response``: A response came over the wire.

    Usage holds input_, output_, cache_read_ and cache_write_tokens.
    """

    provider: str
    model: str | None
    usage: dict[str, Any] | None
    duration_ms: float
    status: str
    raw: Any


class ContentBlockStartPayload(EventPayload, total=False):
    """``content_block:start``: A content block begins."""

    block_type: str
    block_index: int
    total_blocks: int
    metadata: Any


class ContentBlockDeltaPayload(EventPayload, total=False):
    """``content_block:delta``: A piece of a block arrived.

    If the answer is not streamed, the piece is the whole text of the block.
    """

    block_type: str
    block_index: int
    delta: str
    total_blocks: int


class ContentBlockEndPayload(EventPayload, total=False):
    """``content_block:end``: A content block is complete."""

    block: dict[str, Any]
    block_index: int
    total_blocks: int
    usage: dict[str, Any] | None


class ContentBlockResetPayload(EventPayload, total=False):
    """``content_block:reset``: The stream of an answer broke off and starts again.

    Discard everything that was streamed of this answer.
    """

    provider: str
    discarded: str


class LlmStreamBlockStartPayload(EventPayload, total=False):
    """``llm:stream_block_start``: A provider begins to stream a block.

    Its type is text, thinking or tool_use.
    """

    request_id: str
    block_index: int
    block_type: str
    name: str


class LlmStreamBlockDeltaPayload(EventPayload, total=False):
    """``llm:stream_block_delta``: A provider has streamed a piece of text or thinking.

    The sequence counts the pieces of the block.
    """

    request_id: str
    block_index: int
    block_type: str
    sequence: int
    text: str


class LlmStreamBlockEndPayload(EventPayload, total=False):
    """``llm:stream_block_end``: A provider has streamed the whole block."""

    request_id: str
    block_index: int
    block_type: str


class LlmStreamAbortedPayload(EventPayload, total=False):
    """``llm:stream_aborted``: A stream failed after a part of it had been emitted."""

    request_id: str
    error: dict[str, Any]


class OrchestratorSteeringInjectedPayload(EventPayload, total=False):
    """``orchestrator:steering_injected``: A message that arrived during the turn was added."""

    orchestrator: str
    content: Any
    iteration: int
    queued_remaining: int
    metadata: Any


class ThinkingDeltaPayload(EventPayload, total=False):
    """``thinking:delta``: A piece of the model's thinking arrived."""

    block_index: int
    delta: str


class ThinkingFinalPayload(EventPayload, total=False):
    """``thinking:final``: A block of the model's thinking is complete."""

    block_index: int
    text: str


class ToolPrePayload(EventPayload, total=False):
    """``tool:pre``: A tool is about to run."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]
    parallel_group_id: str


class ToolPostPayload(EventPayload, total=False):
    """``tool:post``: A tool has returned. Both tool_result and result hold the returned value."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]
    tool_result: Any
    result: Any
    parallel_group_id: str


class ToolErrorPayload(EventPayload, total=False):
    """``tool:error``: A tool raised, was cancelled or could not be run.

    The model gets an error result.
    """

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]
    error: Any
    parallel_group_id: str


class ContextPreCompactPayload(EventPayload, total=False):
    """``context:pre_compact``: The context is about to compact its view of the conversation."""

    message_count: int
    token_count: int


class ContextPostCompactPayload(EventPayload, total=False):
    """``context:post_compact``: The context has compacted its view of the conversation."""

    message_count: int
    token_count: int


class ContextCompactionPayload(EventPayload, total=False):
    """``context:compaction``: The conversation was compacted.

    Tier is the strongest step that was needed: results, summary, left_out, shortened or undone.
    """

    before_messages: int
    after_messages: int
    before_tokens: int
    after_tokens: int
    budget: int
    count_error: float | None
    tier: str
    left_out: int
    summary: str | None
    failure: str | None
    usage: dict[str, Any] | None


class ContextCacheBreakPayload(EventPayload, total=False):
    """``context:cache_break``: A request begins differently from the previous one.

    Tokens is the number that the service has to read again. Reason is tools, instructions or
    messages.
    """

    reason: str | None
    same_messages: int
    tokens: int
    cost_usd: str | None


class ContextIncludePayload(EventPayload, total=False):
    """``context:include``: Material from another source was added to the context."""

    source: str
    content: Any


class OrchestratorCompletePayload(EventPayload, total=False):
    """``orchestrator:complete``: The loop has ended.

    Status is success, incomplete or cancelled.
    """

    orchestrator: str
    turn_count: int
    status: str


class ExecutionStartPayload(EventPayload, total=False):
    """``execution:start``: A turn begins. This is its first event.

    Attachments describe the parts of the prompt that are not text.
    """

    prompt: str
    attachments: list[dict[str, Any]]


class ExecutionEndPayload(EventPayload, total=False):
    """``execution:end``: A turn has ended, in whatever way.

    Status is completed, cancelled or error.
    """

    response: Any
    status: str


class UserNotificationPayload(EventPayload, total=False):
    """``user:notification``: A module has a message for the user."""

    message: str
    level: str
    source: str


class ArtifactWritePayload(EventPayload, total=False):
    """``artifact:write``: A file was written for the user."""

    path: str
    bytes: int


class ArtifactReadPayload(EventPayload, total=False):
    """``artifact:read``: A file of the user was read."""

    path: str
    bytes: int


class PolicyViolationPayload(EventPayload, total=False):
    """``policy:violation``: An attempt to violate a policy was detected."""

    policy: str
    detail: str
    tool_name: str


class ApprovalRequiredPayload(EventPayload, total=False):
    """``approval:required``: The user is being asked for approval.

    The last three keys come from modules that ask directly, without the kernel.
    """

    hook_name: str
    event: str
    prompt: str
    options: list[str]
    timeout: float
    default: Literal["allow", "deny"]
    tool_name: str
    action: str
    risk_level: str


class ApprovalGrantedPayload(EventPayload, total=False):
    """``approval:granted``: The user answered yes, now or earlier in this session."""

    hook_name: str
    event: str
    prompt: str
    options: list[str]
    reason: str | None
    remembered: bool
    tool_name: str


class ApprovalDeniedPayload(EventPayload, total=False):
    """``approval:denied``: The user answered no, did not answer, or could not be asked."""

    hook_name: str
    event: str
    prompt: str
    options: list[str]
    reason: str | None
    remembered: bool
    tool_name: str


class CancelRequestedPayload(EventPayload, total=False):
    """``cancel:requested``: Once per request to stop. State is graceful or immediate."""

    state: Literal["graceful", "immediate"]
    grace: float | None
    reason: str | None
    running_tools: list[str]


class CancelCompletedPayload(EventPayload, total=False):
    """``cancel:completed``: A cancelled turn has unwound completely. Emitted once per turn."""

    was_immediate: bool
    error: str
    stopped: list[dict[str, Any]]


class ModuleOnSessionReadyFailedPayload(EventPayload, total=False):
    """``module:on_session_ready_failed``: A module's on_session_ready raised or timed out."""

    module_id: str | None
    error: str


class ModuleLoadFailedPayload(EventPayload, total=False):
    """``module:load_failed``: A provider, tool or hook could not be loaded or mounted.

    Emitted once all hooks are mounted.
    """

    module_type: str
    module_id: str | None
    instance_id: str
    error: str
    reason_code: str


class SessionConfigPayload(EventPayload, total=False):
    """``session:config``: The whole plan without secrets, once per turn if the plan requests it."""

    raw: Any


class ModuleUnresponsivePayload(EventPayload, total=False):
    """``module:unresponsive``: Code does not react to its cancellation.

    Repeated at growing intervals for as long as this lasts.
    """

    module_id: str | None
    operation: str
    task: str | None
    awaiting: str | None
    seconds: float


class HookTimeoutPayload(EventPayload, total=False):
    """``hook:timeout``: A handler exceeded its deadline and was cancelled."""

    module_id: str | None
    hook_name: str
    event: str
    seconds: float
    awaiting: str | None
    on_failure: Literal["continue", "deny"]


class HookFailedPayload(EventPayload, total=False):
    """``hook:failed``: A handler raised, or returned something that is not a hook result."""

    module_id: str | None
    hook_name: str
    event: str
    error: str
    error_type: str
    on_failure: Literal["continue", "deny"]


class ModuleCrashedPayload(EventPayload, total=False):
    """``module:crashed``: A background task of a module crashed."""

    module_id: str | None
    task: str | None
    error: str
    error_type: str
    fatal: bool


class CleanupFailedPayload(EventPayload, total=False):
    """``cleanup:failed``: A cleanup raised, or was abandoned at its deadline."""

    module_id: str | None
    cleanup: str
    error: str
    error_type: str
    abandoned: bool
    seconds: float


class TurnResumedPayload(EventPayload, total=False):
    """``turn:resumed``: An interrupted turn continues.

    The outcome of each of its open tool calls is kept, started, repeated or interrupted.
    """

    iteration: int
    calls: list[dict[str, str]]


class BudgetWarningPayload(EventPayload, total=False):
    """``budget:warning``: The share warn_at of a limit of session.budget has been used.

    Emitted once per limit, in the session that has the limit.
    """

    what: str
    limit: float | str
    used: float | str
    share: float


class BudgetExceededPayload(EventPayload, total=False):
    """``budget:exceeded``: A call did not fit into session.budget and was refused.

    The turn of refused_session_id ends with BudgetExceeded.
    """

    what: str
    limit: float | str
    used: float | str
    requested: float | str
    refused_session_id: str


__all__ = [name for name in tuple(globals()) if name.endswith("Payload")]
