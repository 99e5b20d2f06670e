"""Recorded runs of AG-UI of every kind, against the schemas of the official client and its order of events."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.node_parts import node, program
from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import serving
from tests.servers.http.test_ag_ui import answer, run, run_input

pytestmark = pytest.mark.slow

TOWN = {"type": "object", "properties": {"town": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather of a town.", "parameters": TOWN}
BOTH = " ".join(
    json.dumps({"tool": "weather", "town": town}, separators=(",", ":"))
    for town in ("Oslo", "Rome")
)
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("say one two", {}),
    "no text": ("say ", {}),
    "a tool of the agent": (call("crash"), {}),
    "an unknown tool": (call("nowhere"), {}),
    "a tool of the client": (call("weather", town="Oslo"), {"tools": [WEATHER]}),
    "two tools of the client": (f"both {BOTH}", {"tools": [WEATHER]}),
    "a failure": ("fail", {}),
    "a stream that breaks off": ("cut one", {}),
    "a limit that is reached": ("end length cut", {}),
    "context and properties": (
        "notes",
        {"context": [{"description": "x", "value": "y"}], "forwardedProps": {"tenant": "7"}},
    ),
    "state": ("say one", {"state": {"count": 1}}),
}


@pytest.fixture(scope="module")
def check() -> Iterator[Callable[[list[Any]], list[str]]]:
    """Return what is wrong with the events of a run; one process of Node for all tests."""
    words = [node(), str(Path(__file__).with_name("_ag_ui_events.mjs"))]
    words += [
        program("@ag-ui/client", "dist/index.mjs"),
        program("@ag-ui/core", "dist/schemas.mjs"),
    ]
    words.append(program("rxjs", "dist/cjs/index.js"))
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run_check(events: list[Any]) -> list[str]:
            print(json.dumps(events), file=process.stdin, flush=True)
            assert process.stdout is not None
            found: list[str] = json.loads(process.stdout.readline())
            return found

        yield run_check


@pytest.mark.parametrize("name", RUNS)
async def test_run_is_accepted(name, check):
    prompt, more = RUNS[name]
    async with serving() as client:
        events = await run(client, prompt, **more)
        assert events[0]["type"] == "RUN_STARTED"
        assert check(events) == []


@pytest.mark.parametrize("payload", [{"approved": True}, {"approved": False}, None])
async def test_asking_and_answering_runs_are_accepted(payload, check, tmp_path):
    prompt = call("risky", path=str(tmp_path / "trace"))
    async with serving() as client:
        asked = await run(client, prompt)
        assert check(asked) == []
        (question,) = asked[-1]["outcome"]["interrupts"]
        status = "cancelled" if payload is None else "resolved"
        answered = await run(client, prompt, resume=[answer(question, payload, status)])
        assert check(answered) == []
        assert answered[-1]["type"] == "RUN_FINISHED"


async def test_interrupted_run_is_accepted_on_retry(check):
    async with serving() as client:
        exchange = client.begin("POST", "/ag-ui", run_input("say one two"), last_event_id="0")
        assert (await exchange.start()).status == 200
        first = [event async for event in exchange.events()]
        again = client.begin("POST", "/ag-ui", run_input("say one two"), last_event_id="0")
        assert (await again.start()).status == 200
        assert check([event async for event in again.events()]) == check(first) == []


def test_deviations_are_found(check):
    started = {"type": "RUN_STARTED", "threadId": "a", "runId": "b"}
    text = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"}
    assert "Cannot send 'TEXT_MESSAGE_CONTENT'" in check([started, text])[0]
    assert "threadId" in check([{"type": "RUN_STARTED", "runId": "b"}])[0]
    assert check([started, started])
