"""Results and descriptions, as published modules import them."""

from amplifier._json import sanitize_text as _sanitize_for_llm  # noqa: F401 — suites of published modules import it
from amplifier.compat._pydantic.methods import json_default as _json_default  # noqa: F401 — as above
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
