"""`examples/web_app.py` over real HTTP: turns are streamed, and a client that leaves in the middle of one stops it.

The server is a process of its own, on asyncio (uvicorn) and on trio (hypercorn). Nothing here waits for a time: the planted tool
prints when it holds and when it is released, and the server prints how each turn ended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from amplifier.store import SessionIndex
from tests._support.tree import ROOT
from tests.examples._server import Server, events, serving

ANNA = "/conversations/anna"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("Buy milk.\nCall Anna.\n")
    return tmp_path


@pytest.fixture
def example(desk: Path) -> Iterator[Server]:
    """The example as it is."""
    with serving(str(ROOT / "examples" / "web_app.py"), "0", cwd=desk) as server:
        yield server


@pytest.fixture(params=["uvicorn", "hypercorn"])
def held(request: pytest.FixtureRequest, desk: Path) -> Iterator[Server]:
    """The example's application with a model and a tool that do not come back when they hear "hold"."""
    with serving("-m", "tests.examples._held_app", request.param, cwd=desk) as server:
        yield server


def nothing_left(server: Server) -> bool:
    left = server.get("/left")
    assert left == {"sessions": 0, "files": [], "tasks": []}
    return True


def begin_to_hold(server: Server, conversation: str = ANNA):
    """Ask for a turn that does not end; it is in the middle of its tool when this returns."""
    response = server.post(conversation, "hold")
    assert next(events(response)) == ("tool", {"name": "hold", "input": {}})
    server.wait_for("tool: holding")
    return response


# ── the example as it is ─────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_turn_is_streamed_as_events(example):
    with example.post(ANNA, "count the lines in notes.txt") as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        heard = list(events(response))
    kinds = [kind for kind, _ in heard]
    assert kinds.index("tool") < kinds.index("result") < kinds.index("done") == len(kinds) - 1
    assert ("result", {"name": "read_file", "success": True}) in heard
    answer = "".join(data for kind, data in heard[kinds.index("result") :] if kind == "text")
    assert heard[-1] == ("done", answer)
    assert answer.startswith("notes.txt has 2 lines.")
    example.wait_for("anna: completed")


@pytest.mark.slow
def test_client_leaving_during_answer_stops_model(example):
    with example.post(ANNA, "count the lines in notes.txt") as response:
        stream = events(response)
        assert any(kind == "result" for kind, _ in stream)
        assert next(stream)[0] == "text"
    example.wait_for("anna: cancelled")
    with example.post(ANNA, "count the files") as response:
        assert list(events(response))[-1][0] == "done"
    example.wait_for("anna: completed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_idle_server_stops_at_once(example, number):
    assert example.get(ANNA) == []
    assert example.stop(number) in (0, -number, 128 + number)


# ── in the middle of a turn ──────────────────────────────────────────────────────────────────────


def test_client_leaving_during_turn_leaves_nothing(held):
    begin_to_hold(held).close()
    held.wait_for("tool: let go")
    held.wait_for("anna: cancelled")
    assert nothing_left(held)


@pytest.mark.slow
def test_conversation_continues_after_cancelled_turn(held):
    begin_to_hold(held).close()
    held.wait_for("anna: cancelled")
    messages = held.get(ANNA)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"] == "call-1"
    with held.post(ANNA, "and now?") as response:
        assert list(events(response))[-1] == ("done", "I see 5 messages")
    roles = [message["role"] for message in held.get(ANNA)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert nothing_left(held)


@pytest.mark.long
def test_second_turn_is_rejected_without_effect(held):
    with begin_to_hold(held):
        with held.post(ANNA, "me too") as second:
            assert second.status == 409
        with held.post("/conversations/ben", "hello") as other:
            assert list(events(other)) == [
                ("text", "I see 1 messages"),
                ("done", "I see 1 messages"),
            ]
    held.wait_for("anna: cancelled")
    assert [message["role"] for message in held.get(ANNA)] == ["user", "assistant", "tool"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_server_unwinds_running_turn(held, desk, number):
    """SIGTERM is what a service manager or a container sends; uvicorn ends the process with it as soon as it has shut down."""
    with begin_to_hold(held):
        held.stop(number)
        held.wait_for("tool: let go")
        held.wait_for("anna: cancelled")
    stored = SessionIndex(desk / "conversations").transcript("anna")
    assert [message.get("tool_call_id") for message in stored].count("call-1") == 1


@pytest.mark.long
def test_failed_turn_is_reported(held):
    """The next one works."""
    with held.post(ANNA, "fail") as response:
        assert list(events(response)) == [("error", "InvalidRequestError: this request is refused")]
    held.wait_for("anna: failed")
    with held.post(ANNA, "hello") as response:
        assert list(events(response)) == [
            ("text", "I see 3 messages"),
            ("done", "I see 3 messages"),
        ]
    assert "interrupted" in held.get(ANNA)[1]["content"]


@pytest.mark.long
def test_invalid_conversation_name_is_refused(held):
    with held.post("/conversations/.hidden", "hello") as response:
        assert response.status == 400
        assert b"invalid session id" in response.read()
