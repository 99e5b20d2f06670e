"""The payloads of events as TypedDicts, one for each event of the catalogue, for hooks that are type-checked.

A handler may annotate its payload with the TypedDict of the event it is registered for. No key is certain: an emitter leaves out
what it does not know, and third-party modules may emit other values. So read keys with ``get``. ``Any`` is the type of a value that
emitters form differently: loops of different authors describe a response differently.

The catalogue in `amplifier.events` takes the keys of an event and the sentence about it from here.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class EventPayload(TypedDict, total=False):
    """What the kernel puts into every payload; no module can forge it.

    ``parent_call_id`` is there only if the session runs inside a call of another session: the id of the tool call that runs it.
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
    """``prompt:submit``: A prompt came in and is not stored yet; attachments describe what is not text in it."""

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
    """``provider:request``: A model is about to be asked."""

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
    """``provider:error``: A call failed for good, or its answer could not be parsed; the error leaves the turn with its own type."""

    provider: str
    model: str | None
    error: Any
    retryable: bool
    status_code: int | None


class ProviderRefusalPayload(EventPayload, total=False):
    """``provider:refusal``: The model or its service refused to answer; the reason is the service's word, or the error's name."""

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
    """``provider:tool_sequence_repaired``: Tool calls without a result were completed before sending."""

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
    """``llm:response``: A response came over the wire; usage holds input_, output_, cache_read_ and cache_write_tokens."""

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
    """``content_block:delta``: A piece of a block arrived; of an answer that is not streamed, the whole text of a block."""

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
    """``content_block:reset``: An answer was cut and came differently the second time: what was streamed of it is void, all comes anew."""

    provider: str
    discarded: str


class LlmStreamBlockStartPayload(EventPayload, total=False):
    """``llm:stream_block_start``: A provider begins to stream a block; its type is text, thinking or tool_use."""

    request_id: str
    block_index: int
    block_type: str
    name: str


class LlmStreamBlockDeltaPayload(EventPayload, total=False):
    """``llm:stream_block_delta``: A provider has streamed a piece of text or thinking; the sequence counts those of the block."""

    request_id: str
    block_index: int
    block_type: str
    sequence: int
    text: str


class LlmStreamBlockEndPayload(EventPayload, total=False):
    """``llm:stream_block_end``: A provider has streamed all of a block."""

    request_id: str
    block_index: int
    block_type: str


class LlmStreamAbortedPayload(EventPayload, total=False):
    """``llm:stream_aborted``: A stream failed after a part of it had been emitted."""

    request_id: str
    error: dict[str, Any]


class OrchestratorSteeringInjectedPayload(EventPayload, total=False):
    """``orchestrator:steering_injected``: A message that came while the turn ran is now part of the conversation."""

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
    """``tool:post``: A tool has returned; tool_result and result are the same value."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]
    tool_result: Any
    result: Any
    parallel_group_id: str


class ToolErrorPayload(EventPayload, total=False):
    """``tool:error``: A tool raised, was cancelled or could not be run; the model gets an error result."""

    tool_name: str
    tool_call_id: str
    tool_input: dict[str, Any]
    error: Any
    parallel_group_id: str


class ContextPreCompactPayload(EventPayload, total=False):
    """``context:pre_compact``: A compacted view is about to be made."""

    message_count: int
    token_count: int


class ContextPostCompactPayload(EventPayload, total=False):
    """``context:post_compact``: A compacted view has been made."""

    message_count: int
    token_count: int


class ContextCompactionPayload(EventPayload, total=False):
    """``context:compaction``: One record of a compaction, before and after; tier is what it took: results, summary, left_out, shortened or undone."""

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
    """``context:cache_break``: A request does not begin as the one before did, so the service reads so many tokens anew; reason is tools, instructions or messages."""

    reason: str | None
    same_messages: int
    tokens: int
    cost_usd: str | None


class ContextIncludePayload(EventPayload, total=False):
    """``context:include``: Material from elsewhere was put into the context."""

    source: str
    content: Any


class OrchestratorCompletePayload(EventPayload, total=False):
    """``orchestrator:complete``: The loop has ended; status is success, incomplete or cancelled."""

    orchestrator: str
    turn_count: int
    status: str


class ExecutionStartPayload(EventPayload, total=False):
    """``execution:start``: The first event of a turn; attachments describe what is not text in the prompt."""

    prompt: str
    attachments: list[dict[str, Any]]


class ExecutionEndPayload(EventPayload, total=False):
    """``execution:end``: On every way out of a turn; status is completed, cancelled or error."""

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
    """``artifact:read``: A file of the user's was read."""

    path: str
    bytes: int


class PolicyViolationPayload(EventPayload, total=False):
    """``policy:violation``: Something was attempted against a policy."""

    policy: str
    detail: str
    tool_name: str


class ApprovalRequiredPayload(EventPayload, total=False):
    """``approval:required``: The user is being asked; the last three keys come from modules that ask by themselves."""

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
    """``approval:granted``: The question was answered with yes, now or earlier in this session."""

    hook_name: str
    event: str
    prompt: str
    options: list[str]
    reason: str | None
    remembered: bool
    tool_name: str


class ApprovalDeniedPayload(EventPayload, total=False):
    """``approval:denied``: The question was answered with no, not at all, or could not be asked."""

    hook_name: str
    event: str
    prompt: str
    options: list[str]
    reason: str | None
    remembered: bool
    tool_name: str


class CancelRequestedPayload(EventPayload, total=False):
    """``cancel:requested``: Once per request to stop; state is graceful or immediate."""

    state: Literal["graceful", "immediate"]
    grace: float | None
    reason: str | None
    running_tools: list[str]


class CancelCompletedPayload(EventPayload, total=False):
    """``cancel:completed``: Once per cancelled turn, when everything has unwound."""

    was_immediate: bool
    error: str
    stopped: list[dict[str, Any]]


class ModuleOnSessionReadyFailedPayload(EventPayload, total=False):
    """``module:on_session_ready_failed``: A module's on_session_ready raised or overran its deadline."""

    module_id: str | None
    error: str


class ModuleLoadFailedPayload(EventPayload, total=False):
    """``module:load_failed``: A provider, tool or hook could not be loaded or mounted; emitted once all hooks are mounted."""

    module_type: str
    module_id: str | None
    instance_id: str
    error: str
    reason_code: str


class SessionConfigPayload(EventPayload, total=False):
    """``session:config``: Per turn when the plan asks for it: the whole plan, secrets removed."""

    raw: Any


class ModuleUnresponsivePayload(EventPayload, total=False):
    """``module:unresponsive``: Code refuses cancellation; repeated at growing intervals for as long as it does."""

    module_id: str | None
    operation: str
    task: str | None
    awaiting: str | None
    seconds: float


class HookTimeoutPayload(EventPayload, total=False):
    """``hook:timeout``: A handler overran its deadline and was cancelled."""

    module_id: str | None
    hook_name: str
    event: str
    seconds: float
    awaiting: str | None
    on_failure: Literal["continue", "deny"]


class HookFailedPayload(EventPayload, total=False):
    """``hook:failed``: A handler raised or answered with something that is no result."""

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
    """``turn:resumed``: A turn that was cut off goes on; the outcome of each of its open tool calls is kept, started, repeated or interrupted."""

    iteration: int
    calls: list[dict[str, str]]


class BudgetWarningPayload(EventPayload, total=False):
    """``budget:warning``: Once per limit of session.budget, when the share warn_at of it is used; in the session whose limit it is."""

    what: str
    limit: float | str
    used: float | str
    share: float


class BudgetExceededPayload(EventPayload, total=False):
    """``budget:exceeded``: A call did not fit into session.budget and was refused; the turn of refused_session_id ends with BudgetExceeded."""

    what: str
    limit: float | str
    used: float | str
    requested: float | str
    refused_session_id: str


__all__ = [name for name in tuple(globals()) if name.endswith("Payload")]
