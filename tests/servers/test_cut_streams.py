"""An answer whose stream was cut is asked for again, which is announced wherever its text is shown."""

from __future__ import annotations

import json
from typing import Any

import attrs
from mcp import Client as McpClient

from amplifier import AmplifierSession, agent
from amplifier.cli.terminal.display import Display
from amplifier.errors import ProviderUnavailableError
from amplifier.models import AnswerReset, TextDelta
from amplifier.models.turns import BEGINS_AGAIN, TurnRecord
from amplifier.servers import SessionRequest
from amplifier.servers.mcp._agent_server import open_agent_server
from amplifier.shared_sessions import run_turn
from amplifier.testing import script
from amplifier.tracing import Trace, write_text
from tests._support.terminal import on_screen
from tests.cli.test_display import Streams
from tests.servers.acp._in_process import Host, connected
from tests.servers.http._asgi_client import Factory, serving

CUT = ProviderUnavailableError("the connection was lost")


SHOWN = f"Hello the{BEGINS_AGAIN}Hello world!"
"""For someone who can take nothing back."""


def make(**options: Any) -> AmplifierSession:
    plan = {
        "session": {"orchestrator": {"config": {"initial_delay": 0}}},
        "hooks": options.pop("hooks", []),
    }
    session = agent(
        script(["Hello the", CUT], "Hello world!"),
        plan=plan,
        session_id=options.pop("session_id", None),
    )
    session.coordinator.approval_system = options.pop("approvals", None)
    return session


@attrs.define
class Sessions(Factory):
    def __call__(self, request: Any) -> AmplifierSession:
        self.made.append(make(session_id=request.session_id, approvals=request.approvals))
        return self.made[-1]


@attrs.define
class Editors(Host):
    def make(self, wanted: SessionRequest) -> AmplifierSession:
        self.made.append(make(session_id=wanted.session_id, approvals=wanted.approvals))
        return self.made[-1]


async def test_stream_of_text():
    async with make() as session:
        assert "".join([piece async for piece in session.stream_text("hi")]) == SHOWN


async def test_stream_of_events():
    async with make() as session, session.stream("hi") as events:
        text = ""
        async for event in events:
            if isinstance(event, AnswerReset):
                assert event.text == text == "Hello the"
                text = ""
            elif isinstance(event, TextDelta):
                text += event.text
    assert text == events.result == "Hello world!"


async def test_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    streams, record = Streams(out=True, err=True), TurnRecord()
    display = Display(streams, quiet=True)

    async def show(event, text):
        display.show(event, record)

    async with make() as session:
        display.end_turn((await run_turn(session, "hi", record, show)).result)
    retry, *rest = on_screen(streams.record.getvalue())
    assert "trying again" in retry
    assert rest == ["the answer was interrupted; it begins again", "", "Hello world!"]


async def test_openai_api():
    async with serving(Sessions()) as client:
        exchange = client.chat("hi")
        await exchange.start()
        chunks = [chunk async for chunk in exchange.events() if chunk != "[DONE]"]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == SHOWN
        whole = await client.ask(
            "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
        )
        assert whole.json()["choices"][0]["message"]["content"] == "Hello world!"


async def test_session_api():
    async with serving(Sessions()) as client:
        session_id = await client.open_session()
        exchange = client.begin("GET", f"/api/sessions/{session_id}/events")
        await exchange.start()
        await client.ask("POST", f"/api/sessions/{session_id}/turns", {"prompt": "hi"})
        text = ""
        async for event in exchange.events():
            if event["type"] == "text_reset":
                assert event["text"] == text == "Hello the"
                text = ""
            elif event["type"] == "turn_ended":
                break
            else:
                text += event.get("text", "")
        assert text == event["result"] == "Hello world!"


async def test_ag_ui():
    async with serving(Sessions()) as client:
        messages = [{"id": "1", "role": "user", "content": "hi"}]
        exchange = client.begin(
            "POST", "/ag-ui", {"threadId": "a", "runId": "b", "messages": messages}
        )
        await exchange.start()
        shown_by_id: dict[str, str] = {}
        async for event in exchange.events():
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                shown_by_id[event["messageId"]] = (
                    shown_by_id.get(event["messageId"], "") + event["delta"]
                )
        first = BEGINS_AGAIN.rstrip()
        assert list(shown_by_id.values()) == [f"Hello the{first}", "Hello world!"]


async def test_acp():
    async with connected(Editors()) as client:
        session_id = await client.open()
        number, text = client.ask(session_id, "hi"), ""
        while "id" not in (message := await client.next()):
            text += message["params"]["update"]["content"]["text"]
        assert (message["id"], message["result"]["stopReason"], text) == (number, "end_turn", SHOWN)


async def test_mcp():
    async with (
        open_agent_server(make, "agent", 1, "stdio", {}) as server,
        McpClient(server) as client,
    ):
        result = await client.call_tool("run", {"prompt": "hi"})
    assert result.structured_content["response"] == "Hello world!"


async def test_trace(tmp_path):
    log = tmp_path / "events.jsonl"
    hook = {"module": "hooks-logging", "config": {"path": str(log)}}
    async with make(hooks=[hook]) as session:
        await session.execute("hi")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [
        event["data"]["block"]["text"] for event in events if event["event"] == "content_block:end"
    ]
    assert ended == ["Hello world!"]
    resets = [
        event["data"]["discarded"] for event in events if event["event"] == "content_block:reset"
    ]
    assert resets == ["Hello the"]
    trace = Trace(session.session_id)
    trace.add_lines(log.read_bytes().splitlines())
    text = write_text(trace)
    assert text.count("Hello world!") == text.count("Hello") == 1
