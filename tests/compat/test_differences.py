"""The lines about models on the page docs/reference/compat.md, one by one."""

from __future__ import annotations

import copy
from datetime import UTC, date, datetime
from typing import Any

import pydantic
import pytest

from amplifier.models import (
    ApprovalRequest,
    ChatRequest,
    ChatResponse,
    HookResult,
    Message,
    Model,
    SessionStatus,
    TextBlock,
    Usage,
)

pytestmark = pytest.mark.usefixtures("alias")


def test_error_hides_input_and_union_options():
    with pytest.raises(pydantic.ValidationError) as caught:
        Message(role="user", content=5)
    assert [(place["loc"], place["type"], place["input"]) for place in caught.value.errors()] == [
        (("content",), "value_error", None)
    ]


def test_response_format_needs_type():
    with pytest.raises(pydantic.ValidationError, match="response_format"):
        ChatRequest(messages=[], response_format={})


@pytest.mark.parametrize("moment", [5, date(2020, 1, 2)])
def test_times_and_texts_are_strict(moment):
    with pytest.raises(pydantic.ValidationError):
        SessionStatus(session_id="s", started_at=moment)
    with pytest.raises(pydantic.ValidationError):
        TextBlock(text=b"x")


def test_times_are_aware():
    assert SessionStatus(session_id="s").started_at.tzinfo is UTC
    naive = datetime(2020, 1, 2)  # noqa: DTZ001  # what is tested
    assert SessionStatus(session_id="s", started_at=naive).started_at == naive.astimezone()


def test_timeout_is_number():
    with pytest.raises(pydantic.ValidationError):
        ApprovalRequest(tool_name="a", action="b", risk_level="c", timeout=float("nan"))


def test_unknown_member_named_extra():
    message: Any = Message(role="user", content="x", extra=5)
    assert message.extra == {"extra": 5}
    assert message.model_dump()["extra"] == 5


def test_plain_copy_has_own_lists():
    response: Any = ChatResponse(content=[])
    assert copy.copy(response).content is not response.content
    assert response.model_copy().content is response.content


def test_models_are_not_pydantic_models():
    assert not issubclass(Model, pydantic.BaseModel)
    assert not isinstance(HookResult(), pydantic.BaseModel)
    old = [
        "dict",
        "json",
        "copy",
        "parse_obj",
        "model_construct",
        "model_fields_set",
        "model_extra",
        "model_json_schema",
    ]
    assert [name for name in old if hasattr(HookResult, name)] == []


def test_classes_show_fields_to_mocks():
    assert hasattr(ChatRequest, "messages")
    assert "messages" in dir(ChatRequest)  # what a mock with a spec asks for; published, neither


def test_subclass_validators_are_not_run():
    class Careful(Usage):
        label: str = "x"

        @pydantic.field_validator("label")
        @classmethod
        def refuse(cls, value: str) -> str:
            raise ValueError(value)

    assert Careful(input_tokens=1, output_tokens=1, total_tokens=2, label="y").label == "y"
