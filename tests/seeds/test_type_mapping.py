"""amplifier-core contracts, first part: the names, fields and literal values of its tables, and the event constants."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import attrs
import pytest

import amplifier
from amplifier import contracts, errors, events, kernel, models

PROTOCOLS: dict[str, list[str]] = {
    "Tool": ["name", "description", "execute"],
    "Provider": ["name", "get_info", "list_models", "complete", "parse_tool_calls"],
    "Orchestrator": ["execute"],
    "ContextManager": ["add_message", "get_messages_for_request", "get_messages", "set_messages", "clear"],
    "HookHandler": ["__call__"],
    "ApprovalProvider": ["request_approval"],
}

MODELS = [
    *("HookResult", "ToolResult", "ModelInfo", "ConfigField", "ProviderInfo", "ModuleInfo", "SessionStatus"),
    *("ApprovalRequest", "ApprovalResponse", "Message", "ToolSpec", "ChatRequest", "ToolCall", "Usage", "Degradation"),
    *("ChatResponse", "TextBlock", "ThinkingBlock", "RedactedThinkingBlock", "ToolCallBlock", "ToolResultBlock"),
    *("ImageBlock", "ReasoningBlock"),
]

STREAMING = ["TextContent", "ThinkingContent", "ToolCallContent", "ToolResultContent"]

LITERALS: dict[tuple[str, str], set[str]] = {
    ("HookResult", "action"): {"continue", "deny", "modify", "inject_context", "ask_user"},
    ("HookResult", "context_injection_role"): {"system", "user", "assistant"},
    ("HookResult", "approval_default"): {"allow", "deny"},
    ("HookResult", "user_message_level"): {"info", "warning", "error"},
    ("ConfigField", "field_type"): {"text", "secret", "choice", "boolean"},
    ("ModuleInfo", "type"): {"orchestrator", "provider", "tool", "context", "hook", "resolver"},
    ("SessionStatus", "status"): {"running", "completed", "failed", "cancelled"},
    ("Message", "role"): {"system", "developer", "user", "assistant", "function", "tool"},
    ("TextBlock", "visibility"): {"internal", "developer", "user"},
}

LLM_ERRORS = [
    *("RateLimitError", "AuthenticationError", "ContextLengthError", "ContentFilterError", "InvalidRequestError"),
    *("ProviderUnavailableError", "LLMTimeoutError"),
]

EVENTS = {
    "EXECUTION_START": "execution:start",
    "EXECUTION_END": "execution:end",
    "SESSION_START": "session:start",
    "SESSION_END": "session:end",
    "LLM_REQUEST": "llm:request",
    "LLM_RESPONSE": "llm:response",
    "TOOL_PRE": "tool:pre",
    "TOOL_POST": "tool:post",
    "CONTEXT_COMPACTION": "context:compaction",
}


@pytest.mark.parametrize(("name", "members"), PROTOCOLS.items())
def test_every_protocol_has_its_members(name: str, members: list[str]) -> None:
    protocol = getattr(contracts, name)
    assert [member for member in members if not hasattr(protocol, member)] == []


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_an_attrs_class(name: str) -> None:
    """Pydantic models in the document; ours are attrs classes with the same fields (decided, DESIGN 8)."""
    assert attrs.has(getattr(models, name))


@pytest.mark.parametrize("name", STREAMING)
def test_every_streaming_content_is_a_dataclass(name: str) -> None:
    assert dataclasses.is_dataclass(getattr(models, name))


@pytest.mark.parametrize(("place", "values"), LITERALS.items(), ids=map(".".join, LITERALS))
def test_every_enumeration_has_the_documented_values(place: tuple[str, str], values: set[str]) -> None:
    hint = typing.get_type_hints(getattr(models, place[0]))[place[1]]
    literals = [
        hint,
        *(argument for argument in typing.get_args(hint) if typing.get_origin(argument) is typing.Literal),
    ]
    assert {value for literal in literals for value in typing.get_args(literal) if isinstance(value, str)} == values


def test_content_block_types_are_four_strings() -> None:
    assert {member.name: member.value for member in models.ContentBlockType} == {
        "TEXT": "text",
        "THINKING": "thinking",
        "TOOL_CALL": "tool_call",
        "TOOL_RESULT": "tool_result",
    }
    assert issubclass(models.ContentBlockType, str)


def test_the_response_format_is_text_json_or_schema() -> None:
    assert {cls(**extra).type for cls, extra in _response_formats()} == {"text", "json", "json_schema"}


def _response_formats() -> list[tuple[Any, dict[str, Any]]]:
    return [
        (models.ResponseFormatText, {}),
        (models.ResponseFormatJson, {}),
        (models.ResponseFormatJsonSchema, {"json_schema": {}}),
    ]


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("HookRegistry", ["register", "emit", "unregister", "list_handlers"]),
        (
            "CancellationToken",
            ["state", "is_cancelled", "request_graceful", "request_immediate", "reset"],
        ),
        ("ModuleCoordinator", ["mount", "get", "hooks", "cancellation", "process_hook_result", "session"]),
        ("AmplifierSession", ["initialize", "execute", "cleanup"]),
    ],
)
def test_the_behavioural_types_have_their_core(name: str, members: list[str]) -> None:
    cls = getattr(amplifier, name)
    assert cls is getattr(kernel, name)
    assert [member for member in members if not hasattr(cls, member)] == []


@pytest.mark.parametrize("name", LLM_ERRORS)
def test_every_provider_error_is_an_llm_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.LLMError)


@pytest.mark.parametrize(("constant", "value"), EVENTS.items())
def test_every_event_constant_has_its_value(constant: str, value: str) -> None:
    assert getattr(events, constant) == value
    assert value in events.ALL_EVENTS
