"""The published wire format as a table: messages, enums, services.

A line is a message and its fields in the order of their numbers, which begin at 1; a field without a kind is text. After the
kind, ``*`` means repeated, ``?`` for a field that knows whether it was set, ``@name`` for one of a group of which only one
is set; ``map`` is from text to text. Continued lines are indented. An enum's members begin at 0 and are written without the
prefix that their full names have. A service lists its calls as ``Name:Request:Response``, with ``*`` for a stream of responses.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

PACKAGE: Final = "amplifier.module"

_MESSAGES: Final = """\
Empty
ToolSpec name description parameters_json
ToolExecuteRequest input:bytes content_type
ToolExecuteResponse success:bool output:bytes content_type error content_blocks:ContentBlock*
ModuleInfo id name version module_type:ModuleType mount_point description config_schema_json capabilities:* author
MountRequest config:map module_id
MountResponse success:bool error status:HealthStatus
HealthCheckResponse status:HealthStatus message
ConfigField id display_name field_type:ConfigFieldType prompt env_var choices:* required:bool default_value
    show_when:map requires_model:bool
ProviderError error_type:ProviderErrorType message provider_name model status_code:int32 retryable:bool
    retry_after:double
ToolError error_type:ToolErrorType message tool_name stdout stderr exit_code:int32
HookError error_type:HookErrorType message hook_name
AmplifierError provider_error:ProviderError@error tool_error:ToolError@error hook_error:HookError@error
    generic_error:@error validation_error:@error
TextBlock text
ThinkingBlock thinking signature content
RedactedThinkingBlock data
ToolCallBlock id name input_json
ToolResultBlock tool_call_id output_json
ImageBlock media_type data:bytes source_json
ReasoningBlock content:* summary:*
ContentBlock text_block:TextBlock@block thinking_block:ThinkingBlock@block
    redacted_thinking_block:RedactedThinkingBlock@block tool_call_block:ToolCallBlock@block
    tool_result_block:ToolResultBlock@block image_block:ImageBlock@block reasoning_block:ReasoningBlock@block
    visibility:Visibility
ContentBlockList blocks:ContentBlock*
Message role:Role text_content:@content block_content:ContentBlockList@content name tool_call_id metadata_json
ToolCallMessage id name arguments_json
ToolSpecProto name description parameters_json
JsonSchemaFormat schema_json strict:bool
ResponseFormat text:bool@format json:bool@format json_schema:JsonSchemaFormat@format
Usage prompt_tokens:int32 completion_tokens:int32 total_tokens:int32 reasoning_tokens:int32? cache_read_tokens:int32?
    cache_creation_tokens:int32? cost_usd:?
Degradation requested actual reason
ChatRequest messages:Message* tools:ToolSpecProto* response_format:ResponseFormat temperature:double top_p:double
    max_output_tokens:int32 conversation_id stream:bool metadata_json model tool_choice stop:* reasoning_effort
    timeout:double
ChatResponse content tool_calls:ToolCallMessage* usage:Usage degradation:Degradation finish_reason metadata_json
    content_blocks:ContentBlock*
ToolResult success:bool output_json error_json content_blocks:ContentBlock*
ContextInjection content role:ContextInjectionRole ephemeral:bool append_to_last_tool_result:bool hook_name event
HookResult action:HookAction data_json reason context_injection context_injection_role:ContextInjectionRole
    ephemeral:bool approval_prompt approval_options:* approval_timeout:double? approval_default:ApprovalDefault
    suppress_output:bool user_message user_message_level:UserMessageLevel user_message_source
    append_to_last_tool_result:bool context_injections:ContextInjection*
ModelInfo id display_name context_window:int32 max_output_tokens:int32 capabilities:* defaults_json pricing_json
ProviderInfo id display_name credential_env_vars:* capabilities:* defaults_json config_fields:ConfigField*
ApprovalRequest tool_name action details_json risk_level timeout:double?
ApprovalResponse approved:bool reason remember:bool
ListModelsResponse models:ModelInfo*
ParseToolCallsResponse tool_calls:ToolCallMessage*
OrchestratorExecuteRequest prompt session_id
OrchestratorExecuteResponse response error
AddMessageRequest message:Message
GetMessagesResponse messages:Message*
GetMessagesForRequestParams token_budget:int32 provider_name
SetMessagesRequest messages:Message*
HookHandleRequest event data_json
GetSubscriptionsRequest config_json
GetSubscriptionsResponse subscriptions:EventSubscription*
EventSubscription event priority:int32 name
CompleteWithProviderRequest provider_name request:ChatRequest
ExecuteToolRequest tool_name input_json
EmitHookRequest event data_json
EmitHookAndCollectRequest event data_json timeout_seconds:double
EmitHookAndCollectResponse responses_json:*
GetMessagesRequest session_id
KernelAddMessageRequest session_id message:Message
GetMountedModuleRequest module_name module_type:ModuleType
GetMountedModuleResponse found:bool info:ModuleInfo
RegisterCapabilityRequest name value_json
GetCapabilityRequest name
GetCapabilityResponse found:bool value_json
"""

_ENUMS: Final = """\
ModuleType UNSPECIFIED PROVIDER TOOL HOOK MEMORY GUARDRAIL APPROVAL
HealthStatus UNSPECIFIED SERVING NOT_SERVING UNKNOWN
ConfigFieldType UNSPECIFIED STRING NUMBER BOOLEAN SECRET
ProviderErrorType UNSPECIFIED AUTH RATE_LIMIT CONTEXT_LENGTH INVALID_REQUEST CONTENT_FILTER UNAVAILABLE TIMEOUT OTHER
ToolErrorType UNSPECIFIED EXECUTION VALIDATION TIMEOUT
HookErrorType UNSPECIFIED EXECUTION VALIDATION TIMEOUT
Role UNSPECIFIED SYSTEM USER ASSISTANT TOOL FUNCTION DEVELOPER
Visibility UNSPECIFIED ALL LLM_ONLY USER_ONLY
HookAction UNSPECIFIED CONTINUE MODIFY DENY INJECT_CONTEXT ASK_USER
ContextInjectionRole UNSPECIFIED SYSTEM USER ASSISTANT
ApprovalDefault UNSPECIFIED APPROVE DENY
UserMessageLevel UNSPECIFIED INFO WARNING ERROR
"""

_SERVICES: Final = """\
ToolService GetSpec:Empty:ToolSpec Execute:ToolExecuteRequest:ToolExecuteResponse
ProviderService GetInfo:Empty:ProviderInfo ListModels:Empty:ListModelsResponse Complete:ChatRequest:ChatResponse
    CompleteStreaming:ChatRequest:ChatResponse* ParseToolCalls:ChatResponse:ParseToolCallsResponse
OrchestratorService Execute:OrchestratorExecuteRequest:OrchestratorExecuteResponse
ContextService AddMessage:AddMessageRequest:Empty GetMessages:Empty:GetMessagesResponse
    GetMessagesForRequest:GetMessagesForRequestParams:GetMessagesResponse SetMessages:SetMessagesRequest:Empty
    Clear:Empty:Empty
HookService Handle:HookHandleRequest:HookResult GetSubscriptions:GetSubscriptionsRequest:GetSubscriptionsResponse
ApprovalService RequestApproval:ApprovalRequest:ApprovalResponse
KernelService CompleteWithProvider:CompleteWithProviderRequest:ChatResponse
    CompleteWithProviderStreaming:CompleteWithProviderRequest:ChatResponse* ExecuteTool:ExecuteToolRequest:ToolResult
    EmitHook:EmitHookRequest:HookResult EmitHookAndCollect:EmitHookAndCollectRequest:EmitHookAndCollectResponse
    GetMessages:GetMessagesRequest:GetMessagesResponse AddMessage:KernelAddMessageRequest:Empty
    GetMountedModule:GetMountedModuleRequest:GetMountedModuleResponse
    RegisterCapability:RegisterCapabilityRequest:Empty GetCapability:GetCapabilityRequest:GetCapabilityResponse
ModuleLifecycle Mount:MountRequest:MountResponse Cleanup:Empty:Empty HealthCheck:Empty:HealthCheckResponse
    GetModuleInfo:Empty:ModuleInfo
"""


@attrs.frozen
class Field:
    """One field of a message.

    Attributes:
        name: Its name.
        number: Its number on the wire.
        kind: ``string``, ``bytes``, ``bool``, ``int32``, ``double``, ``map``, or the name of a message or an enum.
        is_repeated: Whether there are several.
        is_optional: Whether it knows that it was not set.
        group: The group of which only one is set, if it is in one.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool
    is_optional: bool
    group: str | None


@attrs.frozen
class Call:
    """One call of a service."""

    name: str
    request: str
    response: str
    is_streaming: bool


def _rows(table: str) -> dict[str, list[str]]:
    rows = [row.split() for row in re.sub(r"\n +", " ", table).splitlines()]
    return {name: words for name, *words in rows}


def _field(number: int, word: str) -> Field:
    name, _, rest = word.partition(":")
    kind, _, group = rest.rstrip("*?").partition("@")
    return Field(name, number, kind or "string", rest.endswith("*"), rest.endswith("?"), group or None)


def _call(word: str) -> Call:
    name, request, response = word.split(":")
    return Call(name, request, response.rstrip("*"), response.endswith("*"))


def _prefix(enum: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enum).upper()


MESSAGES: Final = {
    name: [_field(number, word) for number, word in enumerate(words, 1)] for name, words in _rows(_MESSAGES).items()
}
ENUMS: Final = {name: [f"{_prefix(name)}_{word}" for word in words] for name, words in _rows(_ENUMS).items()}
SERVICES: Final = {name: [_call(word) for word in words] for name, words in _rows(_SERVICES).items()}
