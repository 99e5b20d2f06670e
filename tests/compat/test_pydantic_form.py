"""What pydantic gives the published models, on ours; `corpus/check_models.py` has what suites ask of both kernels."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections import deque
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import attrs
import pydantic
import pytest

from amplifier.errors import ModelError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    HookResult,
    Message,
    OpenModel,
    RedactedThinkingBlock,
    TextBlock,
    TextContent,
    ToolResultBlock,
    Usage,
    from_json,
    to_json,
)

pytestmark = pytest.mark.usefixtures("alias")


def usage(**more: Any) -> Any:
    return Usage(input_tokens=1, output_tokens=2, total_tokens=3, **more)


def result_block(output: Any) -> Any:
    return ToolResultBlock(tool_call_id="1", output=output)


# ── model_dump ──


def test_dump_shares_no_container():
    request: Any = ChatRequest(messages=[], metadata={"a": [1]}, more={"b": [1]})
    dumped = request.model_dump()
    dumped["metadata"]["a"].append(2)
    dumped["more"]["b"].append(2)
    assert request.metadata == {"a": [1]}
    assert request.extra == {"more": {"b": [1]}}


def test_empty_own_fields_are_left_out():
    result: Any = HookResult()
    assert "approval_gates" not in result.model_dump()
    assert "approval_gates" not in str(result)
    assert "approval_gates" not in HookResult.model_fields
    asking: Any = HookResult(approval_gates=[{"prompt": "ok?"}])
    assert asking.model_dump()["approval_gates"][0]["prompt"] == "ok?"


def test_exclude_none_skips_free_form_dicts():
    message: Any = Message(
        role="user",
        content=[TextBlock(text="a")],
        metadata={"a": None},
        more=None,
        kept={"b": None},
    )
    assert message.model_dump(exclude_none=True) == {
        "role": "user",
        "content": [{"type": "text", "text": "a"}],
        "metadata": {"a": None},
        "kept": {"b": None},
    }


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    inner: Any = None


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "in_json"),
    [
        (Colour.RED, "red"),
        ((1, (2,)), [1, [2]]),
        ({1}, [1]),
        (frozenset({1}), [1]),
        (deque([1]), [1]),
        (b"ab", "ab"),
        (Decimal("1.50"), "1.50"),
        (datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), "2020-01-02T03:04:05Z"),
        (date(2020, 1, 2), "2020-01-02"),
        (Path("/a"), "/a"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (float("inf"), None),
        (2**80, 2**80),
    ],
)
def test_value_in_python_and_json_form(value, in_json):
    block = result_block(value)
    dumped = block.model_dump()["output"]
    assert dumped == value
    assert type(dumped) is type(value)
    assert block.model_dump(mode="json")["output"] == in_json
    assert json.loads(block.model_dump_json())["output"] == in_json


def test_nested_models_and_dataclasses_become_dicts():
    block = result_block([{"p": Point(1, TextBlock(text="a"))}])
    expected = [{"p": {"x": 1, "inner": {"type": "text", "text": "a", "visibility": None}}}]
    assert block.model_dump()["output"] == expected
    streamed = result_block(TextContent(text="a"))
    assert streamed.model_dump(mode="json")["output"] == {"type": "text", "raw": None, "text": "a"}


def test_nested_pydantic_model_becomes_dict():
    class Theirs(pydantic.BaseModel):
        when: date = date(2020, 1, 2)

    assert result_block(Theirs()).model_dump()["output"] == {"when": date(2020, 1, 2)}
    assert result_block(Theirs()).model_dump(mode="json")["output"] == {"when": "2020-01-02"}


def test_unserialisable_value_fails_in_json_form():
    opaque = Opaque()
    block = result_block(opaque)
    assert block.model_dump()["output"] is opaque
    with pytest.raises(ValueError, match="unknown type"):
        block.model_dump(mode="json")
    with pytest.raises(ValueError, match="unknown type"):
        block.model_dump_json()
    with pytest.raises(ValueError, match="surrogates not allowed"):
        result_block("\ud800").model_dump_json()


def test_self_containing_value_is_error():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular reference"):
        result_block(endless).model_dump()


# ── str, repr, pairs ──


def test_self_containing_model_can_be_shown():
    message = Message(role="user", content="x")
    message.extra["self"] = message
    assert "..." in repr(message)


# ── model_copy ──


def test_closed_model_drops_unknown_updates():
    result: Any = HookResult()
    assert result.model_copy(update={"metadata": 1, "reason": "r"}).model_dump()["reason"] == "r"
    assert not hasattr(result.model_copy(update={"metadata": 1}), "metadata")


# ── validation ──


def test_validation_takes_instances_and_mappings():
    given = usage()
    cls: Any = Usage
    assert cls.model_validate(given) is given
    assert (
        cls.model_validate({"input_tokens": "1", "output_tokens": 2.0, "total_tokens": 3})
        == usage()
    )
    assert (
        cls.model_validate_json(b'{"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}')
        == usage()
    )


@pytest.mark.parametrize("given", [5, "x", [], None, {1: 2}])
def test_validation_of_other_values_fails(given):
    cls: Any = Usage
    with pytest.raises(pydantic.ValidationError):
        cls.model_validate(given)


@pytest.mark.parametrize("text", ["x", "[]", "5", "", b"\xff", "[" * 100_000])
def test_validation_of_non_object_text_fails(text):
    cls: Any = Usage
    with pytest.raises(pydantic.ValidationError):
        cls.model_validate_json(text)


def test_foreign_construction_raises_pydantic_error():
    with pytest.raises(pydantic.ValidationError) as caught:
        Message(role="nobody", content=[{"type": "text"}, {"type": "text", "text": 5}])
    problems = {place["loc"]: place["type"] for place in caught.value.errors()}
    expected = {
        ("role",): "value_error",
        ("content", 0, "text"): "missing",
        ("content", 1, "text"): "value_error",
    }
    assert problems == expected
    assert caught.value.title == "Message"


def test_our_own_code_keeps_our_own_error():
    with pytest.raises(ModelError):
        from_json(Message, '{"role": "nobody", "content": "x"}')
    # A nested model is built by our code: its problems are collected, not thrown one by one.
    with pytest.raises(pydantic.ValidationError) as caught:
        ChatRequest(messages=[{"role": "x", "content": "a"}, {"role": "user"}])
    assert [place["loc"] for place in caught.value.errors()] == [
        ("messages", 0, "role"),
        ("messages", 1, "content"),
    ]


def test_error_without_pydantic_is_own(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydantic_core", None)
    with pytest.raises(ModelError):
        Message(role="nobody", content="x")
    cls: Any = Usage
    with pytest.raises(ModelError):
        cls.model_validate(5)


# ── unknown members as attributes ──


def test_empty_instance_can_be_probed():
    empty = Message.__new__(Message)
    assert not hasattr(empty, "anything")
    assert not hasattr(empty, "extra")


def test_json_round_trip_keeps_set_attributes():
    message: Any = Message(role="user", content="x")
    message.tool_calls = [{"id": "1"}]
    assert from_json(Message, to_json(message)) == message


# ── subclasses ──


def provider_response() -> Any:
    class ProviderResponse(ChatResponse):
        content_blocks: list[TextContent] | None = None
        text: str | None = None
        sources: list[Any] = []  # noqa: RUF012  # as published classes write it
        _private: int = 7

    return ProviderResponse


def test_subclass_defaults_are_per_instance():
    cls = provider_response()
    cls(content=[]).sources.append(1)
    assert cls(content=[]).sources == []


def test_subclass_checks_and_coerces_fields():
    class Counted(Usage):
        calls: int

    made: Any = Counted(input_tokens=1, output_tokens=2, total_tokens=3, calls="4")
    assert made.calls == 4
    with pytest.raises(pydantic.ValidationError, match="calls"):
        Counted(input_tokens=1, output_tokens=2, total_tokens=3)


def test_redeclared_field_keeps_place():
    class Sealed(RedactedThinkingBlock):
        data: str = "d"
        type: Literal["redacted_thinking", "sealed"] = "redacted_thinking"

    assert list(Sealed.model_fields) == ["type", "data", "visibility"]
    block: Any = Sealed()
    assert block.model_dump() == {"type": "redacted_thinking", "data": "d", "visibility": None}
    message = Message(role="assistant", content=[block])
    assert message.content[0] is block


def test_grandchild_class_has_all_fields():
    parent = provider_response()

    class Child(parent):
        depth: int = 2

    made = Child(content=[], text="t")
    assert (made.text, made.depth) == ("t", 2)
    assert list(made.model_dump())[-4:] == ["content_blocks", "text", "sources", "depth"]
    assert parent(content=[]).text is None


def test_class_with_own_decorator_is_left_alone():
    from amplifier.models.base import Model, model

    @model
    class Native(Model):
        items: list[int]
        label: str = "x"

    assert Native(items=["1"]).items == [1]
    assert Native.__dictoffset__ == 0  # slots, and what vars() shows is a copy


def test_attrs_class_is_left_alone():
    @attrs.define(init=False)
    class Bare(OpenModel):
        label: str = "x"

    assert [field.name for field in attrs.fields(Bare)] == ["extra", "label"]
    assert Bare(label="y").label == "y"


def test_subclass_works_without_alias():
    from amplifier import compat

    cls, unused = provider_response(), provider_response()
    made = cls(content=[], text="t")
    compat.uninstall()
    assert (made.text, cls(content=[]).text, unused(content=[]).text) == ("t", None, None)
    compat.install()
