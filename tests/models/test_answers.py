"""From a Python type to the format of an answer and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Required, TypedDict

import attrs
import jsonschema_rs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import ResultError
from amplifier.models.answers import PartialAnswer, answer_format


@attrs.frozen
class Line:
    """One line of an invoice."""

    article: str
    price: float


@attrs.frozen
class Invoice:
    """An invoice."""

    number: int
    lines: list[Line]
    note: str | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Person(TypedDict, total=False):
    name: Required[str]
    age: int


@dataclasses.dataclass
class Node:
    label: str
    children: list[Node]


class Review(pydantic.BaseModel):
    stars: int = pydantic.Field(ge=1, le=5)
    text: str


class Shop(pydantic.BaseModel):
    reviews: list[Review]


CASES: list[tuple[Any, Any, Any]] = [
    (
        Invoice,
        {"number": 1, "lines": [{"article": "tea", "price": 2.5}]},
        Invoice(1, [Line("tea", 2.5)]),
    ),
    (Point, {"x": 1, "y": 2}, Point(1, 2)),
    (Person, {"name": "Ada"}, {"name": "Ada"}),
    (Literal["yes", "no"], "yes", "yes"),
    (int | str, 7, 7),
    (Point | Line, {"article": "tea", "price": 1.0}, Line("tea", 1.0)),
    (Point | Line, {"x": 1, "y": 2}, Point(1, 2)),
    (Point | None, None, None),
    (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
    (
        Node,
        {"label": "a", "children": [{"label": "b", "children": []}]},
        Node("a", [Node("b", [])]),
    ),
    (Review, {"stars": 4, "text": "fine"}, Review(stars=4, text="fine")),
    (list[Review], [{"stars": 4, "text": "fine"}], [Review(stars=4, text="fine")]),
    (dict[str, Review], {"a": {"stars": 4, "text": "fine"}}, {"a": Review(stars=4, text="fine")}),
    (tuple[Review, int], [{"stars": 4, "text": "fine"}, 1], (Review(stars=4, text="fine"), 1)),
    (Annotated[list[Review], "of one shop"], [], []),
    (Review | None, {"stars": 4, "text": "fine"}, Review(stars=4, text="fine")),
    (Review | None, None, None),
    (Review | int, 7, 7),
    (Review | Line, {"article": "tea", "price": 1.0}, Line("tea", 1.0)),
    (list[Review] | Line, {"article": "tea", "price": 1.0}, Line("tea", 1.0)),
    (list[Shop | None], [None, {"reviews": []}], [None, Shop(reviews=[])]),
    (bool, True, True),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"a": 1},
        {"a": 1},
    ),
    ({"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
]


@pytest.mark.parametrize(("result_type", "answer", "expected"), CASES)
def test_schema_of_type_reads_fitting_answers(result_type, answer, expected):
    """The schema is an object, and an answer that fits it becomes a value of the type."""
    form = answer_format(result_type)
    assert form.schema["type"] == "object"
    assert "$ref" not in form.schema
    jsonschema_rs.validator_for(form.schema)
    assert form.name.replace("_", "").replace("-", "").isalnum()
    shown = {"result": answer} if form.is_wrapped else answer
    assert form.read_value(shown) == expected
    assert type(form.read_value(shown)) is type(expected)
    assert form.read_text(json.dumps(shown)) == expected
    assert form.read_text(f"```json\n{json.dumps(shown, indent=1)}\n```") == expected


def test_problems_are_reported_with_paths():
    form = answer_format(Invoice)
    with pytest.raises(ResultError) as caught:
        form.read_value(
            {"number": "one", "lines": [{"article": "tea"}, {"article": 1, "price": 2}], "extra": 1}
        )
    paths = [path for path, _ in caught.value.problems]
    assert sorted(paths) == ["$", "$.lines[0]", "$.lines[1].article", "$.number"]
    assert caught.value.result_type == "Invoice"
    assert "extra" in str(caught.value)


def test_problem_paths_omit_wrapper():
    with pytest.raises(ResultError) as caught:
        answer_format(list[Point]).read_value({"result": [{"x": 1, "y": "two"}]})
    assert [path for path, _ in caught.value.problems] == ["$[0].y"]


@pytest.mark.parametrize(
    "text", ["", "I think it is 7.", '{"x": 1', "[" * 100_000, '{"x": 1, "y": NaN}']
)
def test_text_without_answer_has_path(text):
    with pytest.raises(ResultError) as caught:
        answer_format(Point).read_text(text)
    assert caught.value.problems
    assert len(caught.value.answer) <= 2000


def test_validator_of_type_reports_problem():
    @attrs.frozen
    class Even:
        number: int = attrs.field()

        @number.validator
        def _check(self, attribute: Any, value: int) -> None:
            if value % 2:
                raise ValueError(f"{value} is odd")

    with pytest.raises(ResultError, match="3 is odd"):
        answer_format(Even).read_value({"number": 3})
    with pytest.raises(ResultError, match="stars"):
        answer_format(Review).read_value({"stars": 9, "text": ""})


@pytest.mark.parametrize("result_type", [object(), "Invoice", lambda: None, {"type": "nonsense"}])
def test_type_without_schema_is_refused(result_type):
    with pytest.raises(TypeError, match="JSON Schema"):
        answer_format(result_type)


@attrs.frozen
class Rated:
    review: Review


class Plain:
    pass


@pytest.mark.parametrize(
    ("result_type", "found"),
    [
        (Rated, "Review"),  # a pydantic model as a field of another class
        (list[Rated], "Review"),
        (list[Rated | Review], "Rated"),  # an attrs class beside a pydantic model
        (list[Plain], "Plain"),
        (Callable[[], Review], "Callable"),
    ],
)
def test_unsupported_type_error_explains_alternatives(result_type, found):
    """The error names the type and the supported kinds, but no options of other libraries."""
    with pytest.raises(TypeError) as caught:
        answer_format(result_type)
    text = str(caught.value)
    assert found in text
    assert "expected" in text
    assert "pydantic model" in text
    for option in (
        "schema_hook",
        "Meta(",
        "arbitrary_types_allowed",
        "__get_pydantic_core_schema__",
        "\n",
    ):
        assert option not in text


def test_problem_paths_in_pydantic_lists():
    with pytest.raises(ResultError) as caught:
        answer_format(list[Review]).read_value({"result": [{"stars": 9, "text": ""}, {"stars": 1}]})
    assert sorted(path for path, _ in caught.value.problems) == ["$[0].stars", "$[1]"]


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.integers(1, 9),
)
def test_partial_answer_grows_to_whole(value, step):
    text = json.dumps(value, ensure_ascii=False)
    partial = PartialAnswer(answer_format({"type": "object"}))
    for begin in range(0, len(text), step):
        if partial.add(text[begin : begin + step]):
            assert isinstance(partial.value, dict)
            assert list(partial.value) == list(value)[: len(partial.value)]
    assert partial.value == value or (value == {} and partial.value in (None, {}))


def test_long_partial_answer_parse_count():
    """Reading an answer piece by piece parses it a bounded number of times."""
    partial = PartialAnswer(answer_format({"type": "object"}))
    text = json.dumps({"text": "x" * 300_000})
    changes = sum(partial.add(text[begin : begin + 10]) for begin in range(0, len(text), 10))
    assert (
        changes < 205 + 115
    )  # every piece of the first 2 KiB, then once per growth of a twentieth


def _item(kind: Any) -> Any:
    class Item(pydantic.BaseModel):
        v: kind

    return Item


def test_union_definitions_with_numbered_names():
    """Numbering skips names of definitions that already look numbered."""
    first, second = _item(int), _item(str)

    class Item_1(pydantic.BaseModel):
        z: bool

    class Both(pydantic.BaseModel):
        item: first  # type: ignore[valid-type]
        other: Item_1

    class One(pydantic.BaseModel):
        item: second  # type: ignore[valid-type]

    read = answer_format(Both | One).read_value
    assert read({"result": {"item": {"v": 1}, "other": {"z": True}}}).item.v == 1
    assert read({"result": {"item": {"v": "a"}}}).item.v == "a"
