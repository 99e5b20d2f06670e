"""`examples/web_service.py`, with its page `web_service.html`, over HTTP and in a browser, on uvicorn and on hypercorn with trio."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.browser import open_tab
from tests._support.tree import ROOT
from tests.examples._server import Server, serving

PROGRAM = ROOT / "examples" / "web_service.py"


@pytest.fixture(params=["uvicorn", "hypercorn"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving("-m", "tests.examples._web_service_app", request.param, cwd=tmp_path) as running:
        yield running


def post(server: Server, path: str, **body: Any) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Connection": "close", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    for line in response:
        if line.startswith(b"data: "):
            kind, data = json.loads(line.removeprefix(b"data: "))
            yield kind, data


def test_program_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) < 90


def test_turn_streams_and_next_one_resumes(server):
    with post(server, "/conversations/anna", prompt="hello") as response:
        assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
        assert list(events(response)) == [
            ("text", "I see 1 messages"),
            ("done", "I see 1 messages"),
        ]
    with post(server, "/conversations/anna", prompt="again") as response:
        assert list(events(response))[-1] == ("done", "I see 3 messages")
    with post(server, "/conversations/no!id", prompt="hello") as response:
        assert response.status == 422


def test_person_decides_about_call(server):
    with post(server, "/conversations/anna", prompt="5") as response:
        assert list(events(response)) == [("text", "Done."), ("done", "Done.")]
    for allow in (True, False):
        with post(server, "/conversations/anna", prompt="20") as response:
            stream = events(response)
            kind, question = next(stream)
            assert kind == "approval"
            assert "amount: 20" in question["text"]
            at = f"/conversations/anna/approvals/{question['id']}"
            assert post(server, at, allow=allow).status == 204
            assert post(server, at, allow=allow).status == 404
            assert list(stream)[-1] == ("done", "Done.")


def test_busy_conversation_is_refused(server):
    """A client that leaves stops its turn."""
    held = post(server, "/conversations/anna", prompt="hold")
    server.wait_for("model: holding")
    with post(server, "/conversations/anna", prompt="me too") as refused:
        assert refused.status == 409
        assert json.load(refused)["detail"] == "this conversation has a turn at work"
    with post(server, "/conversations/ben", prompt="hello") as other:
        assert list(events(other))[-1][0] == "done"
    held.close()
    server.wait_for("model: let go")


@pytest.mark.slow
def test_browser_asks_and_decides(server):
    with open_tab() as tab:
        tab.open(f"http://127.0.0.1:{server.port}/", width=800)
        tab.evaluate("document.forms[0].prompt.value = '20'; document.forms[0].requestSubmit()")
        tab.wait_until("document.querySelector('pre button') !== null")
        assert "amount: 20" in tab.evaluate("document.querySelector('pre').textContent")
        tab.evaluate("document.querySelector('pre button').click()")
        tab.wait_until("document.querySelector('pre').textContent.includes('Done.')")
        assert tab.problems == []
