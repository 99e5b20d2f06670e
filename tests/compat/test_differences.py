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


def test_an_error_does_not_show_what_was_given_nor_the_options_of_a_union():
    with pytest.raises(pydantic.ValidationError) as caught:
        Message(role="user", content=5)
    assert [(place["loc"], place["type"], place["input"]) for place in caught.value.errors()] == [
        (("content",), "value_error", None)
    ]


def test_a_response_format_needs_its_type():
    with pytest.raises(pydantic.ValidationError, match="response_format"):
        ChatRequest(messages=[], response_format={})


@pytest.mark.parametrize("moment", [5, date(2020, 1, 2)])
def test_only_moments_are_moments_and_only_text_is_text(moment):
    with pytest.raises(pydantic.ValidationError):
        SessionStatus(session_id="s", started_at=moment)
    with pytest.raises(pydantic.ValidationError):
        TextBlock(text=b"x")


def test_times_are_aware():
    assert SessionStatus(session_id="s").started_at.tzinfo is UTC
    naive = datetime(2020, 1, 2)  # noqa: DTZ001  # what is tested
    assert SessionStatus(session_id="s", started_at=naive).started_at == naive.astimezone()


def test_a_timeout_is_a_number():
    with pytest.raises(pydantic.ValidationError):
        ApprovalRequest(tool_name="a", action="b", risk_level="c", timeout=float("nan"))


def test_an_unknown_member_called_extra_is_found_in_the_dict():
    message: Any = Message(role="user", content="x", extra=5)
    assert message.extra == {"extra": 5}
    assert message.model_dump()["extra"] == 5


def test_a_plain_copy_has_lists_of_its_own_and_a_published_one_shares_them():
    response: Any = ChatResponse(content=[])
    assert copy.copy(response).content is not response.content
    assert response.model_copy().content is response.content


def test_ours_are_no_models_of_pydantic_and_have_no_old_names():
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


def test_classes_show_their_fields_so_a_mock_made_after_one_has_them():
    assert hasattr(ChatRequest, "messages")
    assert "messages" in dir(ChatRequest)  # what a mock with a spec asks for; published, neither


def test_validators_of_a_subclass_are_not_run():
    class Careful(Usage):
        label: str = "x"

        @pydantic.field_validator("label")
        @classmethod
        def refuse(cls, value: str) -> str:
            raise ValueError(value)

    assert Careful(input_tokens=1, output_tokens=1, total_tokens=2, label="y").label == "y"
