"""The models have exactly the names, fields, order and defaults that modules were written against."""

from __future__ import annotations

import inspect
import typing

import attrs
import pytest

from amplifier import models
from amplifier.models import Model, OpenModel

REQUIRED = "<required>"

# Name: (keeps unknown members, {field: default}). Written out by hand from the published kernel, 2.0.2; only
# `HookResult.approval_gates`, `ApprovalGate` and `UnknownBlock` are ours.
TABLE: dict[str, tuple[bool, dict[str, object]]] = {
    "ToolResult": (False, {"success": True, "output": None, "error": None, "content": None}),
    "ContextInjection": (
        False,
        {
            "content": REQUIRED,
            "role": "system",
            "ephemeral": False,
            "append_to_last_tool_result": False,
            "hook_name": "unknown",
            "event": "",
        },
    ),
    "ApprovalGate": (
        False,
        {"hook_name": "unknown", "prompt": None, "options": None, "timeout": 300.0, "default": "deny"},
    ),
    "HookResult": (
        False,
        {
            "action": "continue",
            "data": None,
            "reason": None,
            "context_injection": None,
            "context_injection_role": "system",
            "ephemeral": False,
            "approval_prompt": None,
            "approval_options": None,
            "approval_timeout": 300.0,
            "approval_default": "deny",
            "suppress_output": False,
            "user_message": None,
            "user_message_level": "info",
            "user_message_source": None,
            "append_to_last_tool_result": False,
            "context_injections": [],
            "approval_gates": [],
        },
    ),
    "Pricing": (
        False,
        {
            "input_per_million": REQUIRED,
            "output_per_million": REQUIRED,
            "cache_read_per_million": None,
            "cache_write_per_million": None,
            "currency": "USD",
        },
    ),
    "ModelInfo": (
        False,
        {
            "id": REQUIRED,
            "display_name": REQUIRED,
            "context_window": REQUIRED,
            "max_output_tokens": REQUIRED,
            "capabilities": [],
            "defaults": {},
            "pricing": None,
        },
    ),
    "ConfigField": (
        False,
        {
            "id": REQUIRED,
            "display_name": REQUIRED,
            "field_type": "text",
            "prompt": REQUIRED,
            "env_var": None,
            "choices": None,
            "required": True,
            "default": None,
            "show_when": None,
            "requires_model": False,
        },
    ),
    "ProviderInfo": (
        False,
        {
            "id": REQUIRED,
            "display_name": REQUIRED,
            "credential_env_vars": [],
            "capabilities": [],
            "defaults": {},
            "config_fields": [],
        },
    ),
    "ModuleInfo": (
        False,
        {
            "id": REQUIRED,
            "name": REQUIRED,
            "version": REQUIRED,
            "type": REQUIRED,
            "mount_point": REQUIRED,
            "description": REQUIRED,
            "config_schema": None,
        },
    ),
    "SessionStatus": (
        False,
        {
            "session_id": REQUIRED,
            "started_at": "<now>",
            "ended_at": None,
            "status": "running",
            "total_messages": 0,
            "tool_invocations": 0,
            "tool_successes": 0,
            "tool_failures": 0,
            "total_input_tokens": 0,
            "total_output_tokens": 0,
            "cost_usd": None,
            "last_activity": None,
            "last_error": None,
        },
    ),
    "TextBlock": (True, {"type": "text", "text": REQUIRED, "visibility": None}),
    "ThinkingBlock": (
        True,
        {"type": "thinking", "thinking": REQUIRED, "signature": None, "visibility": None, "content": None},
    ),
    "RedactedThinkingBlock": (True, {"type": "redacted_thinking", "data": REQUIRED, "visibility": None}),
    "ToolCallBlock": (
        True,
        {"type": "tool_call", "id": REQUIRED, "name": REQUIRED, "input": REQUIRED, "visibility": None},
    ),
    "ToolResultBlock": (
        True,
        {"type": "tool_result", "tool_call_id": REQUIRED, "output": REQUIRED, "visibility": None},
    ),
    "ImageBlock": (True, {"type": "image", "source": REQUIRED, "visibility": None}),
    "ReasoningBlock": (True, {"type": "reasoning", "content": REQUIRED, "summary": REQUIRED, "visibility": None}),
    "UnknownBlock": (True, {"type": REQUIRED}),
    "Message": (
        True,
        {"role": REQUIRED, "content": REQUIRED, "name": None, "tool_call_id": None, "metadata": None},
    ),
    "ToolSpec": (True, {"name": REQUIRED, "parameters": REQUIRED, "description": None}),
    "ToolCall": (True, {"id": REQUIRED, "name": REQUIRED, "arguments": REQUIRED}),
    "ResponseFormatText": (False, {"type": "text"}),
    "ResponseFormatJson": (False, {"type": "json"}),
    "ResponseFormatJsonSchema": (False, {"type": "json_schema", "json_schema": REQUIRED, "strict": None}),
    "ChatRequest": (
        True,
        {
            "messages": REQUIRED,
            "tools": None,
            "response_format": None,
            "temperature": None,
            "top_p": None,
            "max_output_tokens": None,
            "conversation_id": None,
            "stream": False,
            "metadata": None,
            "model": None,
            "tool_choice": None,
            "stop": None,
            "reasoning_effort": None,
            "timeout": None,
        },
    ),
    "Usage": (
        True,
        {
            "input_tokens": REQUIRED,
            "output_tokens": REQUIRED,
            "total_tokens": REQUIRED,
            "reasoning_tokens": None,
            "cache_read_tokens": None,
            "cache_write_tokens": None,
            "cost_usd": None,
        },
    ),
    "Degradation": (True, {"requested": REQUIRED, "actual": REQUIRED, "reason": REQUIRED}),
    "ChatResponse": (
        True,
        {
            "content": REQUIRED,
            "tool_calls": None,
            "usage": None,
            "degradation": None,
            "finish_reason": None,
            "metadata": None,
        },
    ),
    "ApprovalRequest": (
        False,
        {"tool_name": REQUIRED, "action": REQUIRED, "details": {}, "risk_level": REQUIRED, "timeout": None},
    ),
    "ApprovalResponse": (False, {"approved": REQUIRED, "reason": None, "remember": False}),
}

LITERALS = {
    ("HookResult", "action"): {"continue", "deny", "modify", "inject_context", "ask_user"},
    ("HookResult", "context_injection_role"): {"system", "user", "assistant"},
    ("HookResult", "approval_default"): {"allow", "deny"},
    ("HookResult", "user_message_level"): {"info", "warning", "error"},
    ("ConfigField", "field_type"): {"text", "secret", "choice", "boolean"},
    ("ModuleInfo", "type"): {"orchestrator", "provider", "tool", "context", "hook", "resolver"},
    ("SessionStatus", "status"): {"running", "completed", "failed", "cancelled"},
    ("Message", "role"): {"system", "developer", "user", "assistant", "function", "tool"},
}

# Modules branch on the absence of these.
FORBIDDEN = {
    "ToolResult": ["to_dict"],
    "TextBlock": ["content", "to_dict"],
    "ToolCallBlock": ["content", "arguments"],
    "ChatResponse": ["text", "content_blocks", "to_dict"],
    "ChatRequest": ["reasoning", "enable_thinking"],
    "Message": ["tool_calls", "to_dict"],
    "Usage": ["cost_unpriced_model", "to_dict"],
    "HookResult": ["to_dict", "copy"],
}


def model_classes() -> list[type[Model]]:
    found = [getattr(models, name) for name in models.__all__]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, Model) and cls not in (Model, OpenModel)]


def declared_default(attribute: attrs.Attribute) -> object:
    if attribute.default is attrs.NOTHING:
        return REQUIRED
    if isinstance(attribute.default, attrs.Factory):
        return "<now>" if attribute.name == "started_at" else attribute.default.factory()
    return attribute.default


@pytest.mark.parametrize("name", TABLE)
def test_a_model_has_exactly_its_fields_and_defaults_in_order(name):
    cls = getattr(models, name)
    keeps_unknown, expected = TABLE[name]
    fields = [field for field in attrs.fields(cls) if field.init and field.name != "extra"]
    assert {field.name: declared_default(field) for field in fields} == expected
    assert [field.name for field in fields] == list(expected)
    assert issubclass(cls, OpenModel) is keeps_unknown


@pytest.mark.parametrize(("name", "field"), LITERALS)
def test_a_field_of_words_allows_exactly_these(name, field):
    hint = typing.get_type_hints(getattr(models, name))[field]
    assert set(typing.get_args(hint)) == LITERALS[name, field]


@pytest.mark.parametrize("cls", model_classes())
def test_type_hints_resolve_and_cover_every_field(cls):
    assert {field.name for field in attrs.fields(cls)} <= set(typing.get_type_hints(cls))


@pytest.mark.parametrize("cls", model_classes())
def test_the_signature_shows_keyword_only_parameters(cls):
    parameters = list(inspect.signature(cls).parameters.values())
    assert [parameter.kind for parameter in parameters[:-1]] == [inspect.Parameter.KEYWORD_ONLY] * (len(parameters) - 1)
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    assert [p.name for p in parameters[:-1]] == [
        field.name for field in attrs.fields(cls) if field.init and field.name != "extra"
    ]


@pytest.mark.parametrize("cls", model_classes())
def test_every_model_has_a_docstring(cls):
    assert cls.__doc__
    assert not cls.__doc__.startswith("Method generated")


@pytest.mark.parametrize(("name", "member"), [(name, member) for name in FORBIDDEN for member in FORBIDDEN[name]])
def test_a_model_has_no_member_whose_absence_modules_rely_on(name, member):
    assert not hasattr(getattr(models, name), member)


@pytest.mark.parametrize("cls", model_classes())
def test_a_model_has_no_public_members_besides_its_fields_and_the_contract(cls):
    allowed = {
        "ToolResult": {"get_serialized_output", "safe_hook_presentation"},
        "SessionStatus": {"to_dict"},
        "UnknownBlock": {"visibility"},
        "HookResult": {"modified"},  # a note of the kernel, beside the data
        "SubAgentEvent": {"path"},
    }
    fields = {field.name for field in attrs.fields(cls)}
    public = {name for name in dir(cls) if not name.startswith("_")} - fields
    assert public == allowed.get(cls.__name__, set())
