"""What a module must be, as published modules import it."""

from amplifier.contracts import (
    ApprovalProvider,
    ContextManager,
    HookHandler,
    Orchestrator,
    Provider,
    Tool,
)
from amplifier.models import (
    ApprovalRequest,
    ApprovalResponse,
    ChatRequest,
    ChatResponse,
    HookResult,
    ModelInfo,
    ProviderInfo,
    ToolCall,
    ToolResult,
)

__all__ = [
    "ApprovalProvider",
    "ApprovalRequest",
    "ApprovalResponse",
    "ChatRequest",
    "ChatResponse",
    "ContextManager",
    "HookHandler",
    "HookResult",
    "ModelInfo",
    "Orchestrator",
    "Provider",
    "ProviderInfo",
    "Tool",
    "ToolCall",
    "ToolResult",
]
