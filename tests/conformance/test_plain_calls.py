"""Slips, growing inputs, and the texts and places that they are made of."""

import pytest

from amplifier.conformance.inputs.growing import growing_lists, growing_texts
from amplifier.conformance.inputs.varied import VariedInputs, objects_at, places_of
from amplifier.conformance.target.locate import find_target
from amplifier.conformance.target.slips import SlipDetector
from amplifier.conformance.target.source import separators_in
from tests.conformance.modules import write_module

SLIPS = """
from contextlib import suppress

__amplifier_module_type__ = "tool"


def hidden(value):
    try:
        return value.upper()
    except Exception:
        return None


def expected(value):
    try:
        return value.upper()
    except (AttributeError, ValueError):
        return None


def expected_by_its_caller(value):
    with suppress(AttributeError):
        value.upper()


def raised_by_hand(value):
    try:
        raise TypeError("a number is needed")
    except Exception:
        return None


def of_another_type(value):
    try:
        return {}[value]
    except Exception:
        return None


def in_a_helper(value):
    return expected_of_a_helper(value)


def expected_of_a_helper(value):
    try:
        return inner(value)
    except AttributeError:
        return None


def inner(value):
    return value.upper()


def of_none(value):
    try:
        return {}.get(value).upper()
    except Exception:
        return None


class Wrapped:
    def __getattr__(self, name):
        return getattr(self.__dict__, name)


def of_a_special_method(value):
    return hasattr(Wrapped(), f"upper{value}")


async def mount(coordinator, config):
    return None
"""


@pytest.mark.parametrize(
    ("function", "is_slip"),
    [
        ("hidden", True),
        ("expected", False),
        ("expected_by_its_caller", False),
        ("raised_by_hand", False),
        ("of_another_type", False),
        ("in_a_helper", False),
        ("of_none", False),
        ("of_a_special_method", False),
    ],
)
def test_slip_is_an_error_nobody_expects(tmp_path, function, is_slip):
    file = write_module(tmp_path, SLIPS, "tool_slips.py")
    names: dict = {}
    exec(compile(SLIPS, str(file), "exec"), names)
    detector = SlipDetector(find_target(file, "tool"))
    with detector.watching():
        names[function](7)
    assert [type(error) for _, error in detector.found] == [AttributeError] * is_slip


@pytest.mark.parametrize("length", [12, 800])
def test_growing_texts_have_their_length(length):
    shapes = growing_texts(["password=1", "../etc"])
    for grow in shapes.values():
        assert abs(len(grow("text", length)) - length) <= 1
    assert not any(".." in shape for shape in shapes)


def test_growing_lists_have_different_items():
    items = growing_lists()["different items"]([{"name": "a", "count": 1}], 50)
    assert len({item["name"] for item in items}) == 50


def test_places_are_found_at_depth():
    given = {"a": "x", "b": [{"c": "y", "d": 1}, {"c": "z"}], "e": []}
    assert list(places_of(given)) == [("a",), ("b",), ("b", 0, "c")]


def test_objects_of_a_schema_are_found_at_depth():
    line = {"type": "object", "properties": {"count": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
        "$defs": {"line": line},
    }
    assert list(objects_at(schema)) == [(("lines", 0), line)]


def test_separators_make_no_path(tmp_path):
    text = (
        SLIPS + "\n\ndef cut(text):\n    return text.split('->'), text.split('../'), '; ' in text\n"
    )
    file = write_module(tmp_path, text, "tool_cuts.py")
    assert separators_in(find_target(file, "tool")) == ["->", "; "]


def test_varied_inputs_use_sought_texts():
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    drawn = VariedInputs(schema, "canary.txt", texts=["one->two", "../up"]).draw(100)
    texts = {given["text"] for given in drawn}
    assert "one->two" in texts
    assert "../up" not in texts
