"""Every span and metric of the recorded turns against the semantic conventions for generative AI.

The conventions are data: the names and types of their attributes, as published. What is not in them
has to begin with our own name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from opentelemetry.trace import StatusCode

from tests.modules.hooks.otel.scenarios import SCENARIOS
from tests.modules.hooks.otel.traces import Traces

pytestmark = pytest.mark.slow

CONVENTIONS: dict[str, Any] = json.loads(
    Path(__file__).with_name("gen_ai_conventions.json").read_text()
)
TYPES: dict[str, Any] = {
    "string": str,
    "int": int,
    "double": (int, float),
    "boolean": bool,
    "string[]": tuple,
    "any": str,  # content is JSON in a text
}


def problems(traces: Traces) -> list[str]:
    """Return what deviates from the conventions."""
    found = []
    for span in traces.ended:
        if span.instrumentation_scope is not None and span.instrumentation_scope.name.startswith(
            "amplifier"
        ):
            found += [f"span {span.name}: {problem}" for problem in _span_problems(span)]
            for event in span.events:
                found += [
                    f"event {event.name}: {text}"
                    for text in _attribute_problems(event.attributes or {})
                ]
    for metric in traces.instruments():
        found += [f"metric {metric.name}: {problem}" for problem in _metric_problems(metric)]
    return found


def _attribute_problems(attributes: Mapping[str, Any]) -> Iterator[str]:
    for name, value in attributes.items():
        kind = CONVENTIONS["attributes"].get(name)
        if kind is None:
            if not name.startswith("amplifier."):
                yield f"{name} is not an attribute of the conventions"
        elif not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            yield f"{name}: expected {kind}, got {value!r}"
        elif kind == "any":
            json.loads(value)


def _span_problems(span: Any) -> Iterator[str]:
    attributes = dict(span.attributes)
    yield from _attribute_problems(attributes)
    operation = attributes.get("gen_ai.operation.name")
    expected = CONVENTIONS["spans"].get(operation)
    if expected is None:
        yield f"gen_ai.operation.name: {operation!r} is not one of the conventions that are used here"
        return
    subject = attributes.get(expected["named_after"])
    if span.name != f"{operation} {subject}":
        yield f"its name is not {operation} and {expected['named_after']}, {subject!r}"
    if span.kind.name != expected["kind"]:
        yield f"kind: expected {expected['kind']}, got {span.kind.name}"
    yield from (f"{name} is required" for name in expected["required"] if name not in attributes)
    if (span.status.status_code is StatusCode.ERROR) != ("error.type" in attributes):
        yield f"status {span.status.status_code.name} with error.type {attributes.get('error.type')!r}"
    if ("server.address" in attributes) != ("server.port" in attributes):
        yield "server.address and server.port belong together"


def _metric_problems(metric: Any) -> Iterator[str]:
    expected = CONVENTIONS["metrics"].get(metric.name)
    for point in metric.data.data_points:
        yield from _attribute_problems(point.attributes)
    if expected is None:
        if not metric.name.startswith("amplifier."):
            yield "it is not a metric of the conventions"
        return
    if metric.unit != expected["unit"]:
        yield f"unit: expected {expected['unit']}, got {metric.unit}"
    for point in metric.data.data_points:
        bounds = point.explicit_bounds
        if [bounds[0], bounds[-1]] != pytest.approx(expected["bounds"]):
            yield f"buckets: expected {expected['bounds']}, got {bounds}"
        yield from (
            f"{name} is required" for name in expected["required"] if name not in point.attributes
        )


CAPTURED: dict[str, Any] = {"capture_content": True}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("otel", [{}, CAPTURED], ids=["without content", "with content"])
async def test_turn_follows_conventions(traces, name, otel):
    await attrs.evolve(SCENARIOS[name], otel=otel).run()
    never_asked = ["span invoke_agent amplifier: gen_ai.provider.name is required"]
    assert problems(traces) == (never_asked if name == "a prompt that a gate denies" else [])
    assert traces.instruments()


async def test_deviations_are_found(traces):
    tracer = traces.provider.get_tracer("amplifier.planted")
    with tracer.start_as_current_span(
        "chat gpt", attributes={"gen_ai.operation.name": "chat", "gen_ai.usage.total": 3}
    ):
        pass
    with tracer.start_as_current_span(
        "walk", attributes={"gen_ai.operation.name": "walk", "server.port": "80"}
    ):
        pass
    traces.meters.get_meter("planted").create_histogram(
        "gen_ai.client.token.usage", unit="1"
    ).record(3)
    traces.meters.get_meter("planted").create_histogram("gen_ai.tokens").record(
        3, {"gen_ai.token.type": 3}
    )
    found = {problem.partition(": ")[2] for problem in problems(traces)}
    assert any(
        problem.startswith("buckets: expected [1, 67108864], got (0.0, 5.0,") for problem in found
    )
    assert {problem for problem in found if not problem.startswith("buckets")} == {
        "gen_ai.usage.total is not an attribute of the conventions",
        "its name is not chat and gen_ai.request.model, None",
        "kind: expected CLIENT, got INTERNAL",
        "gen_ai.provider.name is required",
        "gen_ai.operation.name: 'walk' is not one of the conventions that are used here",
        "server.port: expected int, got '80'",
        "gen_ai.operation.name is required",
        "gen_ai.token.type is required",
        "unit: expected {token}, got 1",
        "it is not a metric of the conventions",
        "gen_ai.token.type: expected string, got 3",
    }
