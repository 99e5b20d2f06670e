"""Typed answers over HTTP: every kind of type, every service, constrained by the service or given with the final tool."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, Required, TypedDict

import pydantic
import pytest

from amplifier.models import ResultDelta
from amplifier.testing import MockTool
from tests.modules.loop.test_loops_typed import City
from tests.modules.providers.services import SERVICES
from tests.modules.providers.test_turns_in_sessions import session_with


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Person(TypedDict, total=False):
    name: Required[str]
    age: int


class Review(pydantic.BaseModel):
    stars: int = pydantic.Field(ge=1, le=5)
    text: str


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

KINDS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "attrs": (City, {"name": "Paris", "people": 2_100_000}, City("Paris", 2_100_000)),
    "dataclass": (Point, {"x": 1, "y": 2}, Point(1, 2)),
    "typed-dict": (Person, {"name": "Ada"}, {"name": "Ada"}),
    "literal": (Literal["yes", "no"], {"result": "yes"}, "yes"),
    "union": (Point | City, {"result": {"x": 1, "y": 2}}, Point(1, 2)),
    "json-schema": (SCHEMA, {"a": 1}, {"a": 1}),
    "pydantic": (Review, {"stars": 4, "text": "fine"}, Review(stars=4, text="fine")),
}
"""Types, what the model answers, and the value."""

MODES = ["native", "tool"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any], Any]:
    return KINDS[request.param]


def with_mode(session: Any, mode: str) -> Any:
    session.config["session"]["orchestrator"]["config"]["answer_mode"] = mode
    return session


def schema_sent(body: Any) -> str:
    """What the service got about the form of the answer, as text."""
    return json.dumps(
        [
            body.get(key)
            for key in ("output_config", "output_format", "response_format", "text", "tools")
        ]
    )


@pytest.mark.parametrize("mode", MODES)
async def test_answer_becomes_value_of_type(kind, mode, server):
    (result_type, given, expected), service = (
        kind,
        SERVICES["anthropic"],
    )  # the next test asks every service
    text = json.dumps(given)
    answer = (
        service.answer([text])
        if mode == "native"
        else service.answer([], [("c1", "final_result", text)])
    )
    server.answers(answer)
    async with with_mode(session_with(service, server, "loop-streaming"), mode) as session:
        assert await session.execute("answer", result_type=result_type) == expected
    assert next(iter(given)) in schema_sent(server.last.body)


@pytest.mark.parametrize("mode", MODES)
async def test_wrong_answer_is_corrected(mode, service, server):
    wrong, right = json.dumps({"x": "one", "y": 2}), json.dumps({"x": 1, "y": 2})
    if mode == "native":
        server.answers(service.answer([wrong]), service.answer([right]))
    else:
        calls = [("c1", "final_result", wrong)], [("c2", "final_result", right)]
        server.answers(*(service.answer([], call) for call in calls))
    async with with_mode(session_with(service, server, "loop-streaming"), mode) as session:
        assert await session.execute("answer", result_type=Point) == Point(1, 2)
    assert "is not of type" in json.dumps(server.last.body)


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "openai-responses"])
async def test_partial_values_arrive_with_final_arguments(name, server):
    service = SERVICES[name]
    text = json.dumps({"name": "Paris", "people": 2_100_000})
    look = ("c0", "look", json.dumps({"name": "elsewhere", "people": 1}))
    server.answers(
        service.answer(["I look."], [look]),
        service.answer(["Here it is."], [("c1", "final_result", text)]),
    )
    tool = MockTool("look", schema={"type": "object"})
    async with with_mode(session_with(service, server, "loop-streaming", tool), "tool") as session:
        async with session.stream("answer", result_type=City) as events:
            values = [event.value async for event in events if isinstance(event, ResultDelta)]
        assert events.result == City("Paris", 2_100_000)
    # The service sends the arguments in two halves; those of the other tool are no answer.
    assert len(values) == 2
    assert values[-1] == {"name": "Paris", "people": 2_100_000}
    assert "elsewhere" not in str(values)
