"""Results and descriptions, as published modules import them."""

from amplifier.models import (
    ConfigField,
    ContextInjection,
    HookResult,
    ImageBlock,
    ModelInfo,
    ModuleInfo,
    Pricing,
    ProviderInfo,
    SessionStatus,
    TextBlock,
    ToolResult,
)

__all__ = [
    "ConfigField",
    "ContextInjection",
    "HookResult",
    "ImageBlock",
    "ModelInfo",
    "ModuleInfo",
    "Pricing",
    "ProviderInfo",
    "SessionStatus",
    "TextBlock",
    "ToolResult",
]
