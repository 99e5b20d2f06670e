"""What tools and hooks give back: the rules of `ToolResult`, and the kernel's two lists on `HookResult`."""

from __future__ import annotations

import datetime
import enum
import json
import math
import pathlib
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.strategies import json_values
from amplifier.errors import ModelError
from amplifier.models import (
    ApprovalGate,
    ContextInjection,
    HookResult,
    ImageBlock,
    TextBlock,
    ToolResult,
    UnknownBlock,
    from_json,
    to_dict,
    to_json,
)
from tests.internal.test_json import circular, diamond, nested

PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}


class Colour(enum.Enum):
    RED = 3


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Loud(str):
    __slots__ = ()


def shared_tuples(levels: int) -> list[object]:
    value: tuple[object, ...] = ("leaf",)
    for _ in range(levels):
        value = (value, value)
    return [value]


# ── output and text ──


@pytest.mark.parametrize(
    ("result", "text", "serialized"),
    [
        (ToolResult(), "Success", "Success"),
        (ToolResult(output=0), "Success", "0"),
        (ToolResult(output=""), "Success", ""),
        (ToolResult(output="hi"), "hi", "hi"),
        (ToolResult(output=True), "True", "True"),
        (ToolResult(output={"a": Decimal("1.5")}), "{'a': Decimal('1.5')}", '{"a": "1.5"}'),
        (ToolResult(output=[1, "é"]), "[1, 'é']", '[1, "\\u00e9"]'),
        (ToolResult(output="a\x00b\ud800\n\x85c"), "a\x00b\ud800\n\x85c", "ab\nc"),
        (ToolResult(success=False), "Failed", "Error: Failed"),
        (
            ToolResult(success=False, error={"code": 1}),
            "Error: Unknown error",
            "Error: Unknown error",
        ),
        (ToolResult(success=False, error={"message": "boom"}), "Error: boom", "boom"),
        (
            ToolResult(success=False, error={"message": "m"}, output={"a": 1}),
            "Error: m",
            '{"a": 1}',
        ),
    ],
)
def test_result_reads_as_text(result, text, serialized):
    assert str(result) == text
    assert result.get_serialized_output() == serialized


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"success": False, "error": {"message": "m"}}, "m"),
        ({"success": False, "error": {"message": "m"}, "output": None}, "m"),
        ({"success": False, "error": {"message": "m"}, "output": 1}, 1),
        ({"success": False, "error": {"message": ""}}, None),
        ({"success": False, "error": {}}, None),
        ({"success": True, "error": {"message": "m"}}, None),
        ({"success": "no", "error": {"message": 5}}, 5),
    ],
)
def test_failed_result_shows_message_as_output(fields, output):
    assert ToolResult(**fields).output == output


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}),
        ({"a": b"by\xfftes"}, {"a": "by�tes"}),
        (
            {"a": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)},
            {"a": "2024-01-02T00:00:00+00:00"},
        ),
        ({"a": datetime.date(2024, 1, 2)}, {"a": "2024-01-02"}),
        ({"a": pathlib.PurePosixPath("x/y")}, {"a": "x/y"}),
        ({"a": math.nan, "b": [math.inf]}, {"a": None, "b": [None]}),
        ({"a": Colour.RED}, {"a": 3}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": Rude()}, {"a": "<Rude>"}),
        ({"a": MappingProxyType({"b": 1})}, {"a": {"b": 1}}),
        ({1: 2, None: 3, False: 4, (1, 2): 5}, {"1": 2, "null": 3, "false": 4, "(1, 2)": 5}),
        ({"\ud800": "x\udfffy"}, {"": "xy"}),
        (circular(), {"a": [1, {"back": "[CIRCULAR]"}]}),
        ([10**5000], ["<int>"]),
        ([Loud("x")], ["x"]),
    ],
)
def test_arbitrary_container_becomes_valid_json(output, expected):
    assert json.loads(ToolResult(output=output).get_serialized_output()) == expected


@pytest.mark.parametrize(
    ("make", "marker"),
    [
        (lambda: nested(10_000), "[TOO DEEP]"),
        (lambda: diamond(60), "[TOO LARGE]"),
        (lambda: shared_tuples(60), "[TOO LARGE]"),
        (circular, "[CIRCULAR]"),
    ],
    ids=["deep", "shared", "shared tuples", "circular"],
)
def test_monstrous_outputs_are_shown_with_marker(make, marker):
    result = ToolResult(output=make())
    text = result.get_serialized_output()
    assert marker in text
    assert len(text) < 10_000_000
    assert json.loads(text) == result.safe_hook_presentation()["output"]


@given(json_values())
def test_json_output_is_shown_exactly(output):
    text = ToolResult(output={"value": output}).get_serialized_output()
    assert json.loads(text) == {"value": output}


@given(
    st.recursive(
        st.none() | st.binary() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.tuples(inner),
    )
)
def test_shown_json_is_always_valid(output):
    shown = json.loads(
        ToolResult(output=[output]).get_serialized_output(), parse_constant=pytest.fail
    )
    assert isinstance(shown, list)
    json.dumps(shown, allow_nan=False).encode("utf-8")


# ── content ──


def test_content_is_reduced_for_requests():
    given_content = [
        TextBlock(text="x", visibility="user", vendor=1),
        {"type": "text", "text": "", "vendor": 1},
        {"type": "image", "source": {**PNG, "vendor": 1}, "visibility": "user"},
        ImageBlock(source=PNG, visibility="developer"),
    ]
    image = ImageBlock(source=PNG)
    result = ToolResult(content=given_content)
    assert result.content == [TextBlock(text="x"), TextBlock(text=""), image, image]
    assert list(result.content[2].source) == ["type", "media_type", "data"]


WAV = {"type": "base64", "media_type": "audio/wav", "data": "aGk="}


def test_audio_is_kept_but_hidden_from_hooks():
    result = ToolResult(
        content=[{"type": "audio", "source": {**WAV, "more": 1}, "visibility": "user"}]
    )
    (block,) = result.content
    assert isinstance(block, UnknownBlock)
    assert to_dict(result)["content"] == [{"type": "audio", "source": WAV}]
    assert ToolResult(content=result.content) == result == from_json(ToolResult, to_json(result))
    (shown,) = result.safe_hook_presentation()["content"]
    note = "[Audio omitted from tool event; original retained for model request if unmodified.]"
    assert shown == {"type": "text", "text": note}


@pytest.mark.parametrize(
    ("content", "path", "problem"),
    [
        ([{"type": "audio", "data": "aGk="}], "content[0]", "invalid tool result audio source"),
        (
            [{"type": "audio", "source": {**WAV, "data": "aGk"}}],
            "content[0]",
            "invalid tool result audio data",
        ),
        ([{"type": "audio", "source": PNG}], "content[0]", "invalid tool result audio media type"),
        ("x", "content", "invalid tool result content"),
        (5, "content", "invalid tool result content"),
        ([{"type": "thinking", "thinking": "x"}], "content[0]", "invalid tool result content"),
        ([{"type": "text", "text": 5}], "content[0]", "invalid tool result content"),
        ([{"type": "text", "text": "x"}, 7], "content[1]", "invalid tool result content"),
        (
            [{"type": "image", "source": {"type": "url"}}],
            "content[0]",
            "invalid tool result image source",
        ),
        ([{"type": "image", "source": 5}], "content[0]", "invalid tool result image source"),
        ([{"type": "image"}], "content[0]", "invalid tool result image source"),
        *(
            (
                [{"type": "image", "source": {**PNG, "media_type": wrong}}],
                "content[0]",
                "invalid tool result image media type",
            )
            for wrong in [
                "IMAGE/png",
                "image/",
                "image/*",
                "image/png; q=1",
                "image/p ng",
                "image/.x",
                None,
                "text/plain",
                "image/png\n",
            ]
        ),
        *(
            (
                [{"type": "image", "source": {**PNG, "data": wrong}}],
                "content[0]",
                "invalid tool result image data",
            )
            for wrong in ["", "aGk", "aGk=\n", "aG-=", "aGl=", b"aGk=", None, "é==="]
        ),
    ],
)
def test_invalid_content_is_refused(content, path, problem):
    with pytest.raises(ModelError) as caught:
        ToolResult(content=content)
    ((where, what),) = caught.value.problems
    assert where == path
    assert what.startswith(problem)


def test_hooks_see_json_and_no_images():
    result = ToolResult(
        output={"a": {1}},
        error={"code": Decimal(1)},
        content=[TextBlock(text="x"), ImageBlock(source=PNG)],
    )
    note = "[Image omitted from tool event; original retained for model request if unmodified.]"
    assert result.safe_hook_presentation() == {
        "success": True,
        "output": {"a": [1]},
        "error": {"code": "1"},
        "content": [{"type": "text", "text": "x"}, {"type": "text", "text": note}],
    }
    assert ToolResult().safe_hook_presentation() == {"success": True, "output": None, "error": None}


# ── assignment ──


def test_assignments_are_checked():
    result = ToolResult()
    result.success, result.content = "no", [{"type": "text", "text": "x"}]
    assert (result.success, result.content) == (False, [TextBlock(text="x")])
    for name, value in [("success", "perhaps"), ("error", 5), ("content", "x")]:
        with pytest.raises(ModelError, match=f"ToolResult: {name}: "):
            setattr(result, name, value)
    with pytest.raises(AttributeError):
        result.nonsense = 1


def test_assignments_to_subclass_are_checked():
    class Texted(ToolResult):
        def __init__(self, text: str, ok: bool = True) -> None:
            super().__init__(success=ok, output=text)

    result = Texted("fine")
    result.error, result.output = {"message": "no"}, "changed"
    assert (result.error, result.output) == ({"message": "no"}, "changed")
    with pytest.raises(ModelError):
        result.error = 5


# ── hooks ──


def test_gates_and_injections_from_dicts():
    result = HookResult(
        approval_gates=[{"hook_name": "a", "prompt": "sure?", "options": ("yes", "no")}],
        context_injections=[{"content": "x"}],
        approval_options=("Allow", "Deny"),
    )
    assert result.approval_gates == [
        ApprovalGate(hook_name="a", prompt="sure?", options=["yes", "no"])
    ]
    assert result.context_injections == [ContextInjection(content="x")]
    assert result.approval_options == ["Allow", "Deny"]


def test_hook_result_data_is_copied():
    data = {"a": [1]}
    result = HookResult(action="modify", data=data)
    data["b"] = 2
    assert result.data == {"a": [1]}
    assert result.data["a"] is data["a"]
    with pytest.raises(ModelError, match="data: expected dict, got list"):
        HookResult(data=[1])
