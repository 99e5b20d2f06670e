"""The models have exactly the names, fields, order and defaults that modules were written against."""

from __future__ import annotations

import inspect
import re
import typing

import attrs
import pytest

from amplifier import models
from amplifier.models import Model, OpenModel

TABLE = """
ToolResult(success=True, output=None, error=None, content=None)
ContextInjection(content, role='system', ephemeral=False, append_to_last_tool_result=False, hook_name='unknown',
    event='')
ApprovalGate(hook_name='unknown', prompt=None, options=None, timeout=300.0, default='deny')
HookResult(action='continue', data=None, reason=None, context_injection=None, context_injection_role='system',
    ephemeral=False, approval_prompt=None, approval_options=None, approval_timeout=300.0, approval_default='deny',
    suppress_output=False, user_message=None, user_message_level='info', user_message_source=None,
    append_to_last_tool_result=False, context_injections=[], approval_gates=[])
Pricing(input_per_million, output_per_million, cache_read_per_million=None, cache_write_per_million=None,
    currency='USD')
ModelInfo(id, display_name, context_window, max_output_tokens, capabilities=[], defaults={}, pricing=None)
ConfigField(id, display_name, field_type='text', prompt, env_var=None, choices=None, required=True, default=None,
    show_when=None, requires_model=False)
ProviderInfo(id, display_name, credential_env_vars=[], capabilities=[], defaults={}, config_fields=[])
ModuleInfo(id, name, version, type, mount_point, description, config_schema=None)
SessionStatus(session_id, started_at=<now>, ended_at=None, status='running', total_messages=0, tool_invocations=0,
    tool_successes=0, tool_failures=0, total_input_tokens=0, total_output_tokens=0, cost_usd=None,
    last_activity=None, last_error=None)
TextBlock+(type='text', text, visibility=None)
ThinkingBlock+(type='thinking', thinking, signature=None, visibility=None, content=None)
RedactedThinkingBlock+(type='redacted_thinking', data, visibility=None)
ToolCallBlock+(type='tool_call', id, name, input, visibility=None)
ToolResultBlock+(type='tool_result', tool_call_id, output, visibility=None)
ImageBlock+(type='image', source, visibility=None)
ReasoningBlock+(type='reasoning', content, summary, visibility=None)
UnknownBlock+(type)
Message+(role, content, name=None, tool_call_id=None, metadata=None)
ToolSpec+(name, parameters, description=None)
ToolCall+(id, name, arguments)
ResponseFormatText(type='text')
ResponseFormatJson(type='json')
ResponseFormatJsonSchema(type='json_schema', json_schema, strict=None)
ChatRequest+(messages, tools=None, response_format=None, temperature=None, top_p=None, max_output_tokens=None,
    conversation_id=None, stream=False, metadata=None, model=None, tool_choice=None, stop=None,
    reasoning_effort=None, timeout=None)
Usage+(input_tokens, output_tokens, total_tokens, reasoning_tokens=None, cache_read_tokens=None,
    cache_write_tokens=None, cost_usd=None)
Degradation+(requested, actual, reason)
ChatResponse+(content, tool_calls=None, usage=None, degradation=None, finish_reason=None, metadata=None)
ApprovalRequest(tool_name, action, details={}, risk_level, timeout=None)
ApprovalResponse(approved, reason=None, remember=False)
"""
"""Every model with its fields and their defaults, in order; ``+`` keeps unknown members. Written out by hand from the published kernel,
2.0.2; only `HookResult.approval_gates`, `ApprovalGate` and `UnknownBlock` are ours."""
EXPECTED = {
    re.split(r"[+(]", row)[0]: row for row in re.sub(r"\n    ", " ", TABLE).split("\n") if row
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
    return [
        cls
        for cls in found
        if isinstance(cls, type) and issubclass(cls, Model) and cls not in (Model, OpenModel)
    ]


def shown(field: attrs.Attribute) -> str:
    if field.default is attrs.NOTHING:
        return field.name
    default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default
    return f"{field.name}={'<now>' if field.name == 'started_at' else repr(default)}"


@pytest.mark.parametrize("name", EXPECTED)
def test_fields_defaults_and_order(name):
    cls = getattr(models, name)
    fields = [shown(field) for field in attrs.fields(cls) if field.init and field.name != "extra"]
    assert (
        f"{name}{'+' if issubclass(cls, OpenModel) else ''}({', '.join(fields)})" == EXPECTED[name]
    )


@pytest.mark.parametrize(("name", "field"), LITERALS)
def test_allowed_words_of_field(name, field):
    hint = typing.get_type_hints(getattr(models, name))[field]
    assert set(typing.get_args(hint)) == LITERALS[name, field]


@pytest.mark.parametrize("cls", model_classes())
def test_models_are_documented_typed_and_keyword_only(cls):
    assert cls.__doc__
    assert not cls.__doc__.startswith("Method generated")
    assert {field.name for field in attrs.fields(cls)} <= set(typing.get_type_hints(cls))
    parameters = list(inspect.signature(cls).parameters.values())
    assert [parameter.kind for parameter in parameters[:-1]] == [inspect.Parameter.KEYWORD_ONLY] * (
        len(parameters) - 1
    )
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    assert [p.name for p in parameters[:-1]] == [
        field.name for field in attrs.fields(cls) if field.init and field.name != "extra"
    ]


@pytest.mark.parametrize(
    ("name", "member"), [(name, member) for name in FORBIDDEN for member in FORBIDDEN[name]]
)
def test_model_lacks_members_modules_probe_for(name, member):
    """Modules rely on the absence of these members."""
    assert not hasattr(getattr(models, name), member)


@pytest.mark.parametrize("cls", model_classes())
def test_model_has_only_contract_members(cls):
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
