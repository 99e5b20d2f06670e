"""Inputs for tools: what their schema accepts, near misses, wild values, and nothing that could do harm."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from amplifier.conformance.engine.cases import texts, texts_matching, tool_inputs, wild_values
from amplifier.conformance.inputs.json_schema import (
    acceptor,
    fingerprint,
    json_problem,
    resolved,
    schema_problem,
)
from amplifier.conformance.inputs.values import (
    IRREGULAR,
    ODD_VALUES,
    invalid_inputs,
    is_harmless,
    sample_inputs,
    valid_inputs,
)
from amplifier.conformance.strategies import json_values
from amplifier.conformance.target.locate import find_target
from amplifier.conformance.target.source import choices_in

SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "empty": {"type": "object", "properties": {}},
    "bounds": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 3, "maximum": 9},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "name": {"type": "string", "minLength": 6, "maxLength": 8},
            "step": {"type": "integer", "multipleOf": 5},
        },
        "required": ["count", "share", "name"],
        "additionalProperties": False,
    },
    "choices": {
        "type": "object",
        "properties": {
            "action": {"enum": ["add", "show", 3]},
            "kind": {"anyOf": [{"const": "a"}, {"type": "integer"}]},
            "maybe": {"type": ["string", "null"]},
            "flag": {"type": "boolean"},
        },
        "required": ["action"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {"$ref": "#/$defs/item"},
                "minItems": 1,
                "maxItems": 3,
            },
            "unique": {
                "type": "array",
                "items": {"type": "string"},
                "uniqueItems": True,
                "minItems": 2,
            },
        },
        "required": ["items"],
        "$defs": {
            "item": {
                "allOf": [
                    {
                        "type": "object",
                        "properties": {"title": {"type": "string"}},
                        "required": ["title"],
                    },
                    {"properties": {"done": {"type": "boolean"}}, "required": ["done"]},
                ]
            }
        },
    },
    "shaped": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "id": {"type": "string", "pattern": "^[a-z]+$"},
            "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
        },
        "required": ["day", "id"],
    },
}


# ── JSON ──


@given(json_values())
def test_a_json_value_has_no_problem(value):
    assert json_problem(value) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, "a set at ['a'][1]"),
        ({1: 2}, "the int key 1"),
        (math.nan, "nan"),
        ("\ud800", "surrogate"),
        (b"bytes", "a bytes"),
        ([Path("x")], "Path"),
    ],
)
def test_a_value_that_is_not_json_is_named_with_its_path(value, words):
    assert words in str(json_problem(value))


def test_a_value_that_contains_itself_is_named():
    value: list[Any] = []
    value.append(value)
    assert "without end" in str(json_problem(value))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), ("1", 1), ([1], {"0": 1}), (None, "null")]
)
def test_a_fingerprint_distinguishes_values_that_python_compares_as_equal(one, other):
    assert fingerprint(one) != fingerprint(other)


# ── schemas ──


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_good_schema_has_no_problem(schema):
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": ["a"]},
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": int}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
    ],
)
def test_a_bad_schema_has_a_problem(schema):
    assert schema_problem(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": ("a", "b")},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema.json"}}},
        {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}},
        },
        {"type": "object", "properties": {"a": {"type": "string", "pattern": r"\p{L}+"}}},
    ],
)
def test_an_unusual_schema_that_is_right_has_no_problem(schema):
    assert schema_problem(schema) is None


def test_references_and_conjunctions_are_read():
    nested = SCHEMAS["nested"]
    item = resolved(nested["properties"]["items"]["items"], nested)
    assert set(item["properties"]) == {"title", "done"}
    assert set(item["required"]) == {"title", "done"}


def test_an_invalid_schema_accepts_nothing_and_raises_nothing():
    assert acceptor({"type": "object", "properties": {"a": {"type": "text"}}}) is None
    assert acceptor(None) is None


# ── listed inputs ──


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_listed_inputs_are_accepted_and_the_same_every_time(schema):
    accepts = acceptor(schema)
    assert accepts is not None
    found = valid_inputs(schema, "canary.txt")
    assert found
    assert all(accepts(each) for each in found)
    assert found == valid_inputs(schema, "canary.txt")
    assert all(accepts(each) for each in sample_inputs(schema, "canary.txt"))


def test_every_choice_and_both_bounds_are_among_the_listed_inputs():
    choices = valid_inputs(SCHEMAS["choices"], "canary.txt")
    assert {repr(each["action"]) for each in choices} == {"'add'", "'show'", "3"}
    assert {repr(each["maybe"]) for each in choices if "maybe" in each} >= {"None", "'text'"}
    assert {each["flag"] for each in choices if "flag" in each} == {True, False}
    assert {each["count"] for each in valid_inputs(SCHEMAS["bounds"], "canary.txt")} >= {3, 9}


def test_words_of_the_source_are_tried_where_any_text_will_do():
    found = valid_inputs(SCHEMAS["plain"], "canary.txt", ["archive", "rm -rf /", "../up"])
    assert {each["text"] for each in found} == {"text", "archive", *IRREGULAR}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_invalid_inputs_leave_each_key_out_and_change_nothing_they_are_made_of(schema):
    bases = sample_inputs(schema, "canary.txt")
    before = copy.deepcopy(bases)
    found = list(invalid_inputs(schema, bases, ["word"], ["choice"]))
    assert bases == before
    for key in bases[0]:
        assert any(key not in each for each in found)
    assert {} in found
    assert any(each.get("word") is None and "word" in each for each in found)


# ── drawn inputs ──


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_many_drawn_inputs_are_accepted_by_their_schema(name):
    accepts = acceptor(SCHEMAS[name])
    assert accepts is not None
    counts = {True: 0, False: 0}

    @settings(max_examples=40, database=None)
    @given(tool_inputs({"tools": {"one": SCHEMAS[name]}, "words": ["word"], "choices": ["add"]}))
    def count(case):
        for given_input in case["inputs"]:
            counts[accepts(given_input)] += 1

    count()
    assert counts[True] > 5, counts


def reached(value: Any) -> list[str]:
    """Every text in a value, keys included."""
    if isinstance(value, dict):
        return [text for key, member in value.items() for text in [key, *reached(member)]]
    if isinstance(value, list):
        return [text for member in value for text in reached(member)]
    return [value] if isinstance(value, str) else []


def leads_away(text: str) -> bool:
    return text.startswith(("/", "~")) or ".." in text


@given(wild_values(["word"]) | texts())
def test_no_wild_value_leads_out_of_the_directory(value):
    assert not [text for text in reached(value) if leads_away(text)]


def test_no_odd_value_leads_out_of_the_directory():
    assert not [text for value in ODD_VALUES for text in reached(value) if leads_away(text)]


@pytest.mark.parametrize(
    "text", ["rm -rf /", "/etc/passwd", "..", "a..b", "~", "a/b", "$(x)", "", "a;b", "x" * 40]
)
def test_what_looks_like_a_path_or_a_command_is_not_harmless(text):
    assert not is_harmless(text)


@given(
    tool_inputs(
        {"tools": {"one": SCHEMAS["choices"], "two": None}, "words": ["word"], "choices": ["add"]}
    )
)
def test_a_drawn_case_is_json_and_names_a_tool(case):
    assert json_problem(case) is None
    assert case["tool"] in ("one", "two")
    assert case["inputs"]


@given(tool_inputs({"tools": {}, "words": [], "choices": []}))
def test_a_module_without_tools_has_one_empty_case(case):
    assert case == {"tool": "", "inputs": []}


# ── words ──


def test_a_module_that_starts_programs_gets_no_names_of_programs(tmp_path):
    harmless, dangerous = tmp_path / "one.py", tmp_path / "two.py"
    body = "def choose(x):\n    return x in ('rm', 'archive') or x == 'sh' or {'cat': 1}.get(x)\n"
    harmless.write_text("async def mount(c, d): ...\n" + body, encoding="utf-8")
    dangerous.write_text(
        "import subprocess\nasync def mount(c, d): subprocess.run(d)\n" + body, encoding="utf-8"
    )
    assert set(choices_in(find_target(harmless, "tool"))) == {"rm", "archive", "sh", "cat"}
    assert choices_in(find_target(dangerous, "tool")) == ["archive"]


# ── texts for the patterns of a source ──


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"rm\s+-rf", {"rm -rf"}),
        (r"\bsudo\b", {"sudo"}),
        (r"/etc/(passwd|shadow)", {"/etc/passwd", "/etc/shadow"}),
        (r"(['\"])x\1", {"'x'", '"x"'}),
        (r"-----BEGIN (?:RSA )?PRIVATE KEY-----", {"-----BEGIN RSA PRIVATE KEY-----"}),
        (r"^\d{3}-\d{2}-\d{4}$", set()),
        (r"[^\s]+@[\w-]+\.[a-z]{2,}", set()),
        (r"x{2,3}g.", set()),
    ],
)
def test_texts_are_found_for_a_pattern_and_all_match_it(pattern, texts):
    found = texts_matching(pattern)
    assert found == texts_matching(pattern)
    assert found
    assert texts <= set(found)
    assert all(re.search(pattern, text, re.IGNORECASE) for text in found)


@pytest.mark.parametrize("text", ["rm -rf", "(", "{0} %s ["])
def test_a_plain_text_and_an_invalid_pattern_are_taken_as_they_are(text):
    assert texts_matching(text) == [text]
