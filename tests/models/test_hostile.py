"""Bad input gives an exact value or one ModelError, and gives it soon; never another error, never a hang."""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.conformance.strategies import instances, json_values
from amplifier.errors import ModelError
from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    HookResult,
    Message,
    Model,
    SessionStatus,
    TextBlock,
    ToolCallBlock,
    ToolResult,
    UnknownBlock,
    Usage,
    from_dict,
    from_json,
    to_dict,
    to_json,
)
from tests.models.test_fields import model_classes

MAX_DEPTH = 120
DEEP = 10_000
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


def nested(depth: int, *, key: str | None = None) -> Any:
    """Containers inside each other; the innermost counts."""
    value: Any = [] if key is None else {}
    for _ in range(depth - 1):
        value = [value] if key is None else {key: value}
    return value


def nested_text(depth: int) -> str:
    return "[" * depth + "]" * depth


def circles() -> list[Any]:
    as_list: list[Any] = []
    as_list.append(as_list)
    as_dict: dict[str, Any] = {}
    as_dict["a"] = as_dict["b"] = as_dict
    long_way: list[Any] = []
    long_way.append({"x": ({"y": long_way},)})
    return [as_list, as_dict, long_way]


def bomb(levels: int) -> list[Any]:
    """A few lists whose text would have 2**levels leaves."""
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value, value]
    return value


def problem_paths(action: Any, *arguments: Any) -> list[str]:
    with pytest.raises(ModelError) as caught:
        action(*arguments)
    assert len(str(caught.value)) < 100_000
    return [path for path, _ in caught.value.problems]


# ── depth, circles, sharing ──


@pytest.mark.parametrize("key", [None, "k"])
def test_depth_limit_is_same_both_ways(key):
    """Reading and writing refuse the same level of nesting."""
    deepest, too_deep = nested(MAX_DEPTH - 1, key=key), nested(MAX_DEPTH, key=key)
    fits = ToolResult(output=deepest)
    assert from_json(ToolResult, to_json(fits)) == from_dict(ToolResult, to_dict(fits)) == fits
    assert problem_paths(to_json, ToolResult(output=too_deep))
    assert problem_paths(from_dict, ToolResult, {"output": too_deep})
    assert problem_paths(from_json, ToolResult, f'{{"output":{json.dumps(too_deep)}}}')


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 900, 1100, DEEP])
def test_too_deep_texts_are_refused(depth):
    for text in (nested_text(depth), '{"a":' * depth + "1" + "}" * depth):
        assert problem_paths(from_json, ToolResult, f'{{"output":{text}}}')
        assert problem_paths(from_json, TextBlock, f'{{"text":"x","unknown":{text}}}')
        assert problem_paths(from_json, list[Message], text)
        assert problem_paths(from_json, ContentBlockUnion, f'{{"type":"?","unknown":{text}}}')


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, DEEP])
def test_too_deep_objects_are_refused(depth):
    for value in (nested(depth), nested(depth, key="k")):
        assert problem_paths(from_dict, ToolResult, {"output": value})
        assert problem_paths(from_dict, Message, value)
        assert problem_paths(to_json, ToolResult(output=value))
        assert problem_paths(to_dict, ToolResult(output=value))
        assert problem_paths(to_json, value)


@pytest.mark.parametrize("index", range(3))
def test_self_containing_objects_are_refused(index):
    circle = circles()[index]
    for action, argument in [
        (to_json, circle),
        (to_dict, circle),
        (to_json, ToolResult(output=circle)),
        (to_dict, TextBlock(text="x", c=circle)),
    ]:
        with pytest.raises(ModelError, match="contains itself"):
            action(argument)
    assert problem_paths(from_dict, ToolResult, {"output": circle})
    assert problem_paths(from_dict, Message, circle)


@pytest.mark.parametrize(
    "text", ['{"output": {"a": ["x\\ud800"]}}', '{"output": {"a": ["\\udfff"]}}']
)
def test_lone_surrogate_is_reported_with_path(text):
    with pytest.raises(ModelError, match=r"ToolResult: output\.a\[0\]: half a surrogate pair"):
        from_json(ToolResult, text)


def test_self_containing_models_are_refused():
    message = Message(role="user", content=[], metadata={})
    message.metadata["me"] = message
    request = ChatRequest(messages=[])
    request.messages.append(request)
    for model in (message, request):
        with pytest.raises(ModelError, match="contains itself"):
            to_json(model)
        with pytest.raises(ModelError, match="contains itself"):
            to_dict(model)


def test_too_deep_models_are_refused():
    request = ChatRequest(messages=[])
    for _ in range(DEEP):
        outer = ChatRequest(messages=[])
        outer.messages.append(request)
        request = outer
    assert problem_paths(to_json, request)
    assert problem_paths(to_dict, request)


@pytest.mark.slow
def test_small_values_with_enormous_texts_are_refused():
    for action, argument in [
        (to_json, bomb(60)),
        (to_dict, bomb(60)),
        (to_json, ToolResult(output=bomb(60))),
        (to_dict, HookResult(data={"a": bomb(60)})),
        (to_json, TextBlock(text="x", unknown=bomb(60))),
        (to_json, ToolResult(output=(bomb(60),))),
    ]:
        with pytest.raises(ModelError, match="so often that its JSON would hold over"):
            action(argument)
    assert problem_paths(from_dict, ToolResult, {"output": bomb(60)}) == ["output"]


@pytest.mark.slow
def test_large_honest_values_are_written():
    value = ToolResult(output=[{"a": [index]} for index in range(150_000)])
    assert from_json(ToolResult, to_json(value)) == value
    shared = {"a": 1}
    assert json.loads(to_json(ToolResult(output=[shared] * 10_000)))["output"] == [shared] * 10_000


# ── size ──


def test_long_strings_pass():
    text = "x" * 50_000_000
    message = Message(role="user", content=text)
    assert from_json(Message, to_json(message)).content == text
    assert from_dict(Message, {"role": "user", "content": text}) == message


@pytest.mark.parametrize("digits", [4301, 100_000, 1_000_000])
def test_too_long_integers_are_not_read(digits):
    number = "1" * digits
    assert problem_paths(from_json, ToolResult, f'{{"output":{number}}}')
    assert problem_paths(
        from_json, Usage, f'{{"input_tokens":-{number},"output_tokens":1,"total_tokens":1}}'
    )
    assert problem_paths(from_json, ToolResult, f'{{"output":[1e{number}]}}')


def test_too_long_integers_are_not_written():
    number = 10**100_000
    assert problem_paths(to_json, ToolResult(output=[number])) == ["output[0]"]
    assert problem_paths(to_dict, ToolResult(output=[0.5j])) == ["output[0]"]
    assert problem_paths(from_dict, ToolResult, {"output": number}) == ["output"]
    assert problem_paths(
        from_dict, Usage, {"input_tokens": number, "output_tokens": 1, "total_tokens": 1}
    ) == ["input_tokens"]
    assert problem_paths(to_json, Usage(input_tokens=number, output_tokens=1, total_tokens=1)) == [
        "input_tokens"
    ]


# ── values JSON does not have ──


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_everywhere(number):
    request = ChatRequest(messages=[Message(role="user", content="x")])
    request.temperature = number
    usage = Usage(input_tokens=1, output_tokens=1, total_tokens=1)
    usage.input_tokens = number
    block = TextBlock(text="x")
    block.text = number
    call = ToolCallBlock(id="1", name="n", input={"a": [None, {"b": number}]})
    for model, path in [
        (ToolResult(output=number), "output"),
        (ToolResult(output={"text": "is null, or [null", "a": [None, number]}), "output.a[1]"),
        (ToolResult(output=[{"x": number}]), "output[0].x"),
        (TextBlock(text="x", unknown=number), "unknown"),
        (HookResult(data={"a": (number,)}), "data.a[0]"),
        (request, "temperature"),
        (usage, "input_tokens"),
        (block, "text"),
        (Message(role="assistant", content=[call]), "content[0].input.a[1].b"),
        ([number], "[0]"),
    ]:
        assert problem_paths(to_json, model) == [path]
        assert problem_paths(to_dict, model) == [path]
    assert problem_paths(from_dict, ToolResult, {"output": [number]}) == ["output[0]"]
    assert problem_paths(from_dict, ChatRequest, {"messages": [], "timeout": number}) == ["timeout"]


def test_none_beside_numbers_is_written():
    value = ToolResult(output={"a": [None, 0.5, "null"], "b": None})
    assert to_json(value) == '{"success":true,"output":{"a":[null,0.5,"null"],"b":null}}'


@pytest.mark.parametrize(
    "literal",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e999",
        "nul",
        "'x'",
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
    ],
)
def test_non_json_literals_are_refused(literal):
    assert problem_paths(from_json, ToolResult, f'{{"output":[{literal}]}}')
    assert problem_paths(from_json, ChatRequest, f'{{"messages":[],"timeout":{literal}}}')


@pytest.mark.parametrize(
    "half", [chr(0xD800), chr(0xDFFF), "a" + chr(0xD83D), chr(0xDE00) + chr(0xD83D)]
)
def test_lone_surrogates_are_refused_both_ways(half):
    for model in (
        TextBlock(text=half),
        TextBlock(text="x", **{half: 1}),
        ToolResult(output=[half]),
        ToolResult(output={half: 1}),
    ):
        assert problem_paths(to_json, model)
        assert problem_paths(from_dict, TextBlock, {"text": half})
    escaped = json.dumps(half)
    assert problem_paths(from_json, TextBlock, f'{{"text":{escaped}}}')
    assert problem_paths(from_json, TextBlock, f'{{"text":"{half}"}}')
    assert problem_paths(from_json, TextBlock, f'{{"text":"x",{escaped}:1}}')
    assert problem_paths(from_json, ToolResult, f'{{"output":[{escaped},{"1" * 400}]}}')
    assert problem_paths(from_dict, ToolResult, {"output": {half: 1}})


def test_whole_surrogate_pairs_are_characters():
    assert from_json(TextBlock, '{"text":"\\ud83d\\ude00"}') == TextBlock(text="😀")
    assert to_json(TextBlock(text="😀")) == '{"type":"text","text":"😀"}'


@pytest.mark.parametrize("key", [1, None, True, (1, 2), b"x", 1.5])
def test_non_text_keys_are_refused(key):
    assert problem_paths(to_json, ToolResult(output=[{key: 1}])) == ["output[0]"]
    assert problem_paths(to_json, TextBlock(text="x", unknown={"a": {key: 1}})) == ["unknown.a"]
    assert problem_paths(from_dict, ToolResult, {"output": {key: 1}}) == ["output"]
    assert problem_paths(from_dict, TextBlock, {"text": "x", key: 1}) == [""]


# ── texts that are no JSON ──


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "}",
        "nope",
        '{"a":}',
        '{"a":1,}',
        "{'a':1}",
        '"',
        "\x00",
        "\ufeff{}",
        '{"a":1}{}',
        "-",
        "1e",
        b"\xff\xfe",
        b"",
        '{"text":"\n"}',
    ],
)
@pytest.mark.parametrize("cls", [Message, list[Message], ContentBlockUnion])
def test_invalid_json_is_refused(cls, text):
    with pytest.raises(ModelError, match="not valid JSON"):
        from_json(cls, text)


@pytest.mark.parametrize("text", [None, 5, [], {}, object()])
def test_non_text_input_is_refused(text):
    with pytest.raises(ModelError, match="expected JSON text as str or bytes, got"):
        from_json(Message, text)


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview])
def test_texts_may_be_bytes_of_any_kind(convert):
    for number in (5, 10**30):
        text = to_json(ToolResult(output=number)).encode()
        assert from_json(ToolResult, convert(text)).output == number


# ── wrong types everywhere ──

WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    {"type": "text"},
    [None, {"type": 1}],
]


def every_path(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path]
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, member in members:
        paths += every_path(member, (*path, key))
    return paths


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


def removed(value: Any, path: tuple[Any, ...]) -> Any:
    copied = value.copy()
    if len(path) == 1:
        del copied[path[0]]
    else:
        copied[path[0]] = removed(copied[path[0]], path[1:])
    return copied


def check_reading(cls: type[Model], data: Any) -> None:
    """Both ways in give the same value or the same problems, and nothing else."""
    outcomes = []
    for read, argument in [(from_dict, data), (from_json, json.dumps(data))]:
        try:
            value = read(cls, argument)
        except ModelError as error:
            outcomes.append(error.problems)
            continue
        assert from_json(cls, to_json(value)) == value
        if isinstance(value, SessionStatus) and "started_at" not in data:
            value.started_at = NOON  # both are "now", at two moments
        outcomes.append(value)
    assert outcomes[0] == outcomes[1] != []


@given(cls=st.sampled_from(model_classes()), data=st.data())
def test_wrong_value_at_any_path(cls, data):
    plain = to_dict(data.draw(instances(cls)))
    path = data.draw(st.sampled_from(every_path(plain)))
    check_reading(cls, replaced(plain, path, data.draw(st.sampled_from(WRONG) | json_values())))
    if path:
        check_reading(cls, removed(plain, path))


@given(cls=st.sampled_from(model_classes()), value=json_values())
def test_arbitrary_json_is_refused_or_read(cls, value):
    check_reading(cls, value)


@pytest.mark.parametrize(
    "name",
    [
        "extra",
        "__class__",
        "__init__",
        "_extra_",
        "_in_order",
        "_type_position",
        "__slots__",
        "self",
        "model_dump",
    ],
)
def test_unknown_member_names_do_no_harm(name):
    for cls, plain in ((TextBlock, {"type": "text", "text": "x"}), (UnknownBlock, {"type": "odd"})):
        value = from_dict(cls, {**plain, name: {"a": 1}})
        assert value.extra[name] == {"a": 1}
        assert to_dict(value) == {**plain, name: {"a": 1}}
        assert from_json(cls, to_json(value)) == value
        assert type(value) is cls


@pytest.mark.parametrize("interpreter_limit", [0, 640])
def test_digit_limit_ignores_interpreter_setting(interpreter_limit):
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(interpreter_limit)
    try:
        assert problem_paths(from_json, ToolResult, f'{{"output":{"1" * 5000}}}')
        assert problem_paths(to_json, ToolResult(output=[10**5000])) == ["output[0]"]
        if interpreter_limit:
            assert problem_paths(to_json, ToolResult(output=[10**1000])) == ["output[0]"]
            assert problem_paths(from_json, ToolResult, f'{{"output":{"1" * 1000}}}')
    finally:
        sys.set_int_max_str_digits(before)
