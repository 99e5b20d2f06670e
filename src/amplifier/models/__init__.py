"""The values that cross a boundary: messages, requests, results, and descriptions of modules, providers and models.

Models are built with keywords, may be changed, and compare by value. Those that keep unknown members hold them in
`extra` (`OpenModel`). `to_json` and `from_json` are the only way to text and back.
"""

from amplifier.models._codec.converter import from_dict, from_json, to_dict, to_json
from amplifier.models._definition.base import Model, OpenModel

from ._approval import ApprovalRequest, ApprovalResponse
from ._chat import (
    ChatRequest,
    ChatResponse,
    Degradation,
    ResponseFormat,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    ResponseFormatText,
    Usage,
)
from ._content import (
    ContentBlockUnion,
    ImageBlock,
    ReasoningBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    Visibility,
)
from ._info import (
    ConfigField,
    ConfigFieldType,
    ModelInfo,
    ModuleInfo,
    ModuleType,
    Pricing,
    ProviderInfo,
    SessionState,
    SessionStatus,
)
from ._messages import Message, Role, ToolCall, ToolSpec
from ._results import (
    ApprovalDefault,
    ApprovalGate,
    ContextInjection,
    ContextInjectionRole,
    HookAction,
    HookResult,
    ToolResult,
    UserMessageLevel,
)
from ._stream_chunks import StreamChunk, StreamKind
from ._streamed_content import (
    ContentBlock,
    ContentBlockType,
    TextContent,
    ThinkingContent,
    ToolCallContent,
    ToolResultContent,
)
from ._turn_events import ResultDelta, TextDelta, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent

__all__ = [
    "ApprovalDefault",
    "ApprovalGate",
    "ApprovalRequest",
    "ApprovalResponse",
    "ChatRequest",
    "ChatResponse",
    "ConfigField",
    "ConfigFieldType",
    "ContentBlock",
    "ContentBlockType",
    "ContentBlockUnion",
    "ContextInjection",
    "ContextInjectionRole",
    "Degradation",
    "HookAction",
    "HookResult",
    "ImageBlock",
    "Message",
    "Model",
    "ModelInfo",
    "ModuleInfo",
    "ModuleType",
    "OpenModel",
    "Pricing",
    "ProviderInfo",
    "ReasoningBlock",
    "RedactedThinkingBlock",
    "ResponseFormat",
    "ResponseFormatJson",
    "ResponseFormatJsonSchema",
    "ResponseFormatText",
    "ResultDelta",
    "Role",
    "SessionState",
    "SessionStatus",
    "StreamChunk",
    "StreamKind",
    "TextBlock",
    "TextContent",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingContent",
    "ThinkingDelta",
    "ToolCall",
    "ToolCallBlock",
    "ToolCallContent",
    "ToolFinished",
    "ToolResult",
    "ToolResultBlock",
    "ToolResultContent",
    "ToolSpec",
    "ToolStarted",
    "TurnEvent",
    "UnknownBlock",
    "Usage",
    "UserMessageLevel",
    "Visibility",
    "from_dict",
    "from_json",
    "to_dict",
    "to_json",
]
