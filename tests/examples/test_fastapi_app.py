"""The application of "use it in FastAPI", served by uvicorn and asked over HTTP.

Nothing here waits for a time: the planted tool prints when it is called and when it is cancelled, and the application prints how
each turn ended.
"""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.store import SessionIndex
from tests._support.tree import ROOT
from tests.examples._server import Server, serving

ANNA = "/conversations/anna"

HELD = """
import app, uvicorn
from tests.examples._held_app import mount_model, mount_tool

plan = {**app.PLAN, "providers": ["provider-planted"], "tools": ["tool-hold"]}
held = app.make_app(plan, {"provider-planted": mount_model, "tool-hold": mount_tool})
uvicorn.run(held, host="127.0.0.1", port=0, access_log=False, timeout_graceful_shutdown=1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the application."""
    (tmp_path / "app.py").write_text((ROOT / "examples" / "fastapi_app.py").read_text())
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    return tmp_path


@pytest.fixture
def example(folder: Path) -> Iterator[Server]:
    """The application as it is."""
    with serving("-m", "uvicorn", "app:app", "--port", "0", cwd=folder) as server:
        yield server


@pytest.fixture
def held(folder: Path) -> Iterator[Server]:
    """The application with a model and a tool that do not come back when they hear "hold"."""
    with serving(str(folder / "held.py"), cwd=folder) as server:
        yield server


def begin(server: Server, path: str, prompt: str) -> http.client.HTTPConnection:
    """Send a question and do not wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        "POST", path, json.dumps({"prompt": prompt}), {"content-type": "application/json"}
    )
    return connection


def ask(server: Server, path: str, prompt: str) -> tuple[int, Any]:
    connection = begin(server, path, prompt)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_conversation_continues_over_requests(example: Server) -> None:
    status, answer = ask(example, ANNA, "count the lines in notes.txt")
    assert status == 200
    assert answer["text"].startswith("notes.txt has 1 line")
    assert ask(example, ANNA, "count the files")[0] == 200
    roles = [message["role"] for message in example.get(ANNA)]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    assert example.get("/conversations/ben") == []


def test_wrong_requests_are_rejected_with_reason(example: Server) -> None:
    status, answer = ask(example, "/conversations/.hidden", "hello")
    assert status == 400
    assert "invalid session id" in answer["error"]
    with example.post(ANNA, "no JSON") as response:
        assert response.status == 422


@pytest.mark.slow
def test_leaving_client_cancels_turn(held: Server) -> None:
    connection = begin(held, ANNA, "hold")
    held.wait_for("tool: holding")
    assert ask(held, ANNA, "me too")[0] == 409
    connection.close()
    held.wait_for("tool: let go")
    held.wait_for("anna: cancelled")
    assert [message["role"] for message in held.get(ANNA)] == ["user", "assistant", "tool"]
    assert ask(held, ANNA, "and now?") == (200, {"text": "I see 5 messages"})


def test_model_failure_is_reported(held: Server) -> None:
    status, answer = ask(held, ANNA, "fail")
    assert (status, answer) == (502, {"error": "this request is refused"})
    assert ask(held, ANNA, "hello")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_server_unwinds_turns(held: Server, folder: Path, number: signal.Signals) -> None:
    connection = begin(held, ANNA, "hold")
    held.wait_for("tool: holding")
    held.stop(number)
    held.wait_for("tool: let go")
    held.wait_for("anna: cancelled")
    connection.close()
    stored = SessionIndex(folder / "conversations").transcript("anna")
    assert [message.get("tool_call_id") for message in stored].count("call-1") == 1
