"""A schema of unknown origin fetches nothing, and neither building its validator nor a check takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from amplifier._internal.json import SchemaRefused, build_validator
from amplifier.conformance.inputs.json_schema import acceptor, schema_problem
from amplifier.models.answers import answer_format


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the requests that it got."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            body = b'{"type": "string"}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def schemas(address: str) -> dict[str, dict[str, Any]]:
    """Schemas that lead to another document."""
    return {
        "reference": {"type": "object", "properties": {"a": {"$ref": f"{address}/a.json"}}},
        "fragment": {"type": "object", "properties": {"a": {"$ref": f"{address}/a.json#/b"}}},
        "dynamic": {"type": "object", "properties": {"a": {"$dynamicRef": f"{address}/a.json#b"}}},
        "relative to the own address": {
            "$id": f"{address}/root.json",
            "type": "object",
            "allOf": [{"$ref": "other.json"}],
        },
        "relative to a part's address": {
            "type": "object",
            "allOf": [{"$id": f"{address}/b/", "$ref": "c.json"}],
        },
        "schema of the schema": {"$schema": f"{address}/meta.json", "type": "object"},
        "within a definition": {
            "type": "object",
            "$defs": {"d": {"not": {"$ref": f"{address}/d"}}},
        },
    }


@pytest.mark.parametrize("kind", schemas(""))
def test_nothing_is_fetched(kind, listener, tmp_path):
    address, requests = listener
    (tmp_path / "a.json").write_text('{"type": "string"}')
    for base in (address, tmp_path.as_uri()):
        schema = schemas(base)[kind]
        with pytest.raises(SchemaRefused):
            build_validator(schema)
        with pytest.raises(TypeError, match="refused"):
            answer_format(schema)
        schema_problem(schema)
        assert acceptor(schema) is None
    assert requests == []


def nested(levels: int, part: str = "properties") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", part: {"a": schema}}
    return schema


def doubled(levels: int) -> dict[str, Any]:
    """A small schema that has 2 ** levels parts once its references are followed."""
    parts: dict[str, Any] = {
        f"p{number}": {
            "allOf": [{"$ref": f"#/$defs/p{number + 1}"}, {"$ref": f"#/$defs/p{number + 1}"}]
        }
        for number in range(levels)
    }
    return {
        "type": "object",
        "$defs": {**parts, f"p{levels}": {"type": "string"}},
        "properties": {"a": {"$ref": "#/$defs/p0"}},
    }


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (lambda: nested(50_000), "nested more than"),  # made when they are wanted: they are large
        (lambda: {"type": "object", "description": "x" * 10_000_000}, "larger than"),
        (
            lambda: {
                "type": "object",
                "properties": {f"p{n}": {"type": "string"} for n in range(200_000)},
            },
            "larger than",
        ),
        (lambda: {"type": "object", "enum": list(range(1_000_000))}, "larger than"),
        (doubled(30), "parts"),
        (
            {
                "type": "object",
                "$defs": {f"p{n}": {"$ref": f"#/$defs/p{n + 1}"} for n in range(500)}
                | {"p500": {}},
            },
            "references",
        ),
        ({"type": "object", "properties": {"a": {"pattern": r"\w" * 4000}}}, "patterns"),
        ({"type": "object", "patternProperties": {r"((\w{99}){99}){99}": {}}}, "patterns"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "which is not in it"),
        ({"type": "object", "properties": {"a": {"$ref": "#b"}}}, "which is not in it"),
        (
            {"type": "object", "properties": {"a": {"$anchor": "b"}, "c": {"$anchor": "b"}}},
            "two parts",
        ),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "not valid JSON Schema"),
        ({"type": "object", "title": "\ud800"}, "not valid JSON Schema"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "schema",
)
def test_a_schema_beyond_a_limit_is_refused(schema, words):
    with pytest.raises(SchemaRefused, match=words):
        build_validator(schema() if callable(schema) else schema)


def test_references_into_the_schema_itself_are_followed():
    tree = {
        "$id": "https://example.org/tree",
        "type": "object",
        "properties": {
            "below": {"type": "array", "items": {"$ref": "#"}},
            "name": {"$ref": "#/$defs/na~1me"},
            "n": {"$ref": "#n"},
        },
        "$defs": {"na/me": {"type": "string"}, "other": {"$anchor": "n", "type": "integer"}},
    }
    validator = build_validator(tree)
    assert validator.is_valid({"name": "a", "n": 1, "below": [{"name": "b"}]})
    assert validator.problems({"below": [{"name": 1}]}, 5) == [
        (["below", 0, "name"], '1 is not of type "string"')
    ]
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"pattern": "^a{1,255}$"}},
    }
    assert not build_validator(schema).is_valid({"a": "b"})


def test_a_schema_that_contains_itself_is_checked_in_any_depth_and_its_problems_only_near_the_top():
    again = {"$ref": "#/$defs/a"}
    schema = {
        "$defs": {
            "a": {"type": "object", "patternProperties": {"x": again, "^x": again, ".": again}}
        },
        **again,
    }
    validator = build_validator(schema)
    deep: Any = 1
    for _ in range(60):
        deep = {"x": deep}
    assert not validator.is_valid(deep)
    assert [message for _, message in validator.problems(deep, 5)] == [
        "it does not fit the schema; the place is unknown, as the schema is recursive"
    ]
    assert validator.problems({"x": 1}, 1) == [(["x"], '1 is not of type "object"')]
