"""Models of every kind of field read by the converter: every problem with its path, unknown keys by the rule of the class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import attrs
import pytest

from amplifier.errors import ModelError
from amplifier.models import Message, Model
from amplifier.models._converter import structure
from amplifier.models.base import model
from amplifier.models.fields import checked


class Level(str, Enum):  # noqa: UP042  # the kind of enum that compares equal to its text
    LOW = "low"


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError(f"expected seconds greater than 0, got {seconds!r}")
    return seconds


def _names(value: Any) -> tuple[str, ...]:
    wrong = [
        (f"[{at}]", "expected a name") for at, name in enumerate(value) if not isinstance(name, str)
    ]
    if wrong:
        raise ModelError(wrong, subject="names")
    return tuple(value)


@model
class Server(Model):
    command: str
    arguments: list[str] = attrs.field(factory=list)
    environment: dict[str, str] = attrs.field(factory=dict)
    level: Level = Level.LOW


@model
class Settings(Model):
    timeout: float = checked(_positive, default=30.0)
    names: tuple[str, ...] = checked(_names, default=(), raw=True)
    mode: Literal["fast", "safe"] = "safe"
    server: Server | None = None
    servers: dict[str, Server] = attrs.field(factory=dict)
    hosts: tuple[Server, ...] = ()
    first: Message | None = None
    anything: Any = None
    max_size: int = 1
    limit: int | str | None = None


@dataclass
class Place:
    row: int
    note: str = ""


@model
class Point(Model):
    x: int
    tags: list[str] = attrs.field(factory=list)
    place: Place | None = None


def problems_of(cls: Any, value: Any) -> list[tuple[str, str]]:
    with pytest.raises(ModelError) as caught:
        structure(cls, value)
    return caught.value.problems


def test_model_is_read_from_nested_dicts():
    live = object()
    given = {
        "timeout": 5,
        "names": ["a"],
        "mode": "fast",
        "server": {"command": "x", "arguments": ("-v",), "environment": {"A": "b"}, "level": "low"},
        "servers": {"one": {"command": "y"}},
        "hosts": [{"command": "z"}],
        "first": {"role": "user", "content": "hi", "vendor": 1},
        "anything": live,
        "max_size": 7,
        "limit": "none",
    }
    settings = structure(Settings, given)
    assert settings == Settings(
        timeout=5.0,
        names=("a",),
        mode="fast",
        server=Server(command="x", arguments=["-v"], environment={"A": "b"}),
        servers={"one": Server(command="y")},
        hosts=(Server(command="z"),),
        first=Message(role="user", content="hi", vendor=1),
        anything=live,
        max_size=7,
        limit="none",
    )
    assert settings.anything is live
    assert structure(Settings, settings) is settings
    assert structure(Settings, {}) == Settings()


def test_every_problem_has_its_path():
    given = {
        "timeout": -1,
        "names": ["a", 2, 3],
        "mode": "slow",
        "server": {"arguments": "-v", "environment": {"A": 1}, "level": "high"},
        "servers": {"one": {"command": 1}, "two words": 5},
        "hosts": [{"command": "z"}, {}],
        "first": {"role": "user", "content": [{"type": "text", "text": 5}]},
        "max_size": "many",
        "limit": [],
    }
    assert problems_of(Settings, given) == [
        ("timeout", "expected seconds greater than 0, got -1.0"),
        ("names[1]", "expected a name"),
        ("names[2]", "expected a name"),
        ("mode", "expected one of 'fast', 'safe', got 'slow'"),
        ("server.command", "required, but missing"),
        ("server.arguments", "expected list, got str"),
        ("server.environment.A", "expected str, got int"),
        ("server.level", "'high' is not a valid Level"),
        ("servers.one.command", "expected str, got int"),
        ("servers['two words']", "expected Server or dict, got int"),
        ("hosts[1].command", "required, but missing"),
        ("first.content[0].text", "expected str, got int"),
        ("max_size", "expected int, got the str 'many'"),
        ("limit", "expected int or str, got list"),
    ]


def test_lists_and_unions_are_read_too():
    assert structure(Point, {"x": "3", "tags": ["a"]}) == Point(x=3, tags=["a"])
    assert structure(list[Point], [{"x": 1}, Point(x=2)]) == [Point(x=1), Point(x=2)]
    assert structure(Point | None, None) is None
    assert problems_of(list[Point], [{"x": 1}, {"tags": [1]}]) == [
        ("[1].x", "required, but missing"),
        ("[1].tags[0]", "expected str, got int"),
    ]
    for wrong in (5, "text", [1]):
        assert problems_of(Point, wrong) == [
            ("", f"expected Point or dict, got {type(wrong).__name__}")
        ]


def test_third_party_model_with_dataclass_field():
    place = Place(2)
    assert Point(x=1, place=place).place is place
    assert Point(x=1, place={"row": "2"}).place == place
    assert problems_of(Point, {"x": 1, "place": 5}) == [
        ("place", "expected Place or dict, got int")
    ]
    assert problems_of(Point, {"x": 1, "place": {"row": "two"}}) == [
        ("place.row", "expected int, got the str 'two'")
    ]
    assert problems_of(Point, {"x": 1, "place": {}}) == [("place.row", "required, but missing")]
