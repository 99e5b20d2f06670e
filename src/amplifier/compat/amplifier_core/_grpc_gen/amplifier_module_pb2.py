"""The messages of the published wire format as protobuf classes, built from a table when this file is imported.

Needs protobuf. The table has what the services of tools and providers use, which are those that the foundation library serves. A line is a
message and its fields in the order of their numbers, which begin at 1; a field without a kind is text. After the kind, ``*`` means
repeated, ``?`` a field that knows whether it was set, ``@name`` one of a group of which only one is set; ``map`` is from text to text.
Continued lines are indented. An enum's members begin at 0 and are written without the prefix that their full names have. A service
lists its calls as ``Name:Request:Response``, with ``*`` for a stream of responses.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.internal import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    enum_type_wrapper,
)

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
ModelInfo id display_name context_window:int32 max_output_tokens:int32 capabilities:* defaults_json pricing_json
ProviderInfo id display_name credential_env_vars:* capabilities:* defaults_json config_fields:ConfigField*
ListModelsResponse models:ModelInfo*
ParseToolCallsResponse tool_calls:ToolCallMessage*
EmitHookRequest event data_json
GetCapabilityRequest name
GetCapabilityResponse found:bool value_json
"""

_ENUMS: Final = """\
ModuleType UNSPECIFIED PROVIDER TOOL HOOK MEMORY GUARDRAIL APPROVAL
HealthStatus UNSPECIFIED SERVING NOT_SERVING UNKNOWN
ConfigFieldType UNSPECIFIED STRING NUMBER BOOLEAN SECRET
Role UNSPECIFIED SYSTEM USER ASSISTANT TOOL FUNCTION DEVELOPER
Visibility UNSPECIFIED ALL LLM_ONLY USER_ONLY
"""

_SERVICES: Final = """\
ToolService GetSpec:Empty:ToolSpec Execute:ToolExecuteRequest:ToolExecuteResponse
ProviderService GetInfo:Empty:ProviderInfo ListModels:Empty:ListModelsResponse Complete:ChatRequest:ChatResponse
    CompleteStreaming:ChatRequest:ChatResponse* ParseToolCalls:ChatResponse:ParseToolCallsResponse
ModuleLifecycle Mount:MountRequest:MountResponse Cleanup:Empty:Empty HealthCheck:Empty:HealthCheckResponse
    GetModuleInfo:Empty:ModuleInfo
"""

_SCALARS = {"string": 9, "bytes": 12, "bool": 8, "int32": 5, "double": 1}
_MESSAGE, _ENUM, _OPTIONAL, _REPEATED = 11, 14, 1, 3


def _rows(table: str) -> dict[str, list[str]]:
    rows = [row.split() for row in re.sub(r"\n +", " ", table).splitlines()]
    return {name: words for name, *words in rows}


def _prefixed(enum: str, words: list[str]) -> list[str]:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum).upper()
    return [f"{prefix}_{word}" for word in words]


_MEMBERS = {enum: _prefixed(enum, words) for enum, words in _rows(_ENUMS).items()}
SERVICES: Final = {
    service: [(*call.rstrip("*").split(":"), call.endswith("*")) for call in calls]
    for service, calls in _rows(_SERVICES).items()
}
"""Name, request, response, and whether responses are streamed, of every call by service."""


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="amplifier_module.proto", package=PACKAGE, syntax="proto3")
    for name, members in _MEMBERS.items():
        enum = file.enum_type.add(name=name)
        for number, member in enumerate(members):
            enum.value.add(name=member, number=number)
    for name, words in _rows(_MESSAGES).items():
        message = file.message_type.add(name=name)
        for group in dict.fromkeys(word.partition("@")[2] for word in words if "@" in word):
            message.oneof_decl.add(name=group)
        for number, word in enumerate(words, 1):
            _add_field(message, number, word)
        # A field that knows whether it was set is a group of its own, and those come after the others.
        for added in message.field:
            if added.proto3_optional:
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{added.name}")
    for name, calls in SERVICES.items():
        service = file.service.add(name=name)
        for call, request, response, is_streaming in calls:
            types = {"input_type": f".{PACKAGE}.{request}", "output_type": f".{PACKAGE}.{response}"}
            service.method.add(name=call, server_streaming=is_streaming or None, **types)
    return file


def _add_field(message: Any, number: int, word: str) -> None:
    name, _, rest = word.partition(":")
    kind, _, group = rest.rstrip("*?").partition("@")
    is_many = rest.endswith("*") or kind == "map"
    added = message.field.add(name=name, number=number, label=_REPEATED if is_many else _OPTIONAL)
    if (kind or "string") in _SCALARS:
        added.type = _SCALARS[kind or "string"]
    elif kind == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for part_number, part in enumerate(("key", "value"), 1):
            entry.field.add(name=part, number=part_number, label=_OPTIONAL, type=_SCALARS["string"])
        added.type, added.type_name = _MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
    else:
        added.type = _ENUM if kind in _MEMBERS else _MESSAGE
        added.type_name = f".{PACKAGE}.{kind}"
    if group:
        added.oneof_index = [oneof.name for oneof in message.oneof_decl].index(group)
    if rest.endswith("?"):
        added.proto3_optional = True


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
DESCRIPTOR = _pool.FindFileByName("amplifier_module.proto")

for _name in _rows(_MESSAGES):
    globals()[_name] = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[_name])
    globals()[_name].__module__ = __name__
for _name, _members in _MEMBERS.items():
    globals()[_name] = enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[_name])
    globals().update({member: number for number, member in enumerate(_members)})


def __getattr__(name: str) -> Any:
    # For the type checker: which names there are is known when the table has been read.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
