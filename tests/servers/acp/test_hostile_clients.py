"""Clients that send nonsense, ask twice, do not read or vanish: a clear answer each, and nothing is left."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from tests.servers.acp._in_process import Client, Host, connected

PING = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (b"{", -32700, "not valid JSON"),
        (b"\xff\xfe", -32700, "not valid JSON"),
        (b"[" * 100_000, -32700, "not valid JSON"),
        (b"[]", -32600, "a batch"),
        (b"7", -32600, "expected one JSON object"),
        (b"{}", -32600, "jsonrpc"),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "x"}', -32600, "id: expected"),
        (b'{"jsonrpc": "2.0", "id": true, "method": "x"}', -32600, "id: expected"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600, "method: expected"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": []}', -32602, "params: expected"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x"}', -32601, "unknown method 'x'"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "session/new"}', -32600, "before initialize"),
        (
            json.dumps({**PING, "params": {"protocolVersion": "1"}}).encode(),
            -32602,
            "protocolVersion",
        ),
    ],
)
async def test_nonsense_is_answered_with_reason(line, code, message):
    async with connected() as client:
        client.write(line + b"\n")
        error = (await client.next())["error"]
        assert error["code"] == code
        assert message in error["message"]
        assert await client.open()  # and the connection goes on


@pytest.mark.parametrize(
    ("method", "params", "code", "message"),
    [
        ("session/new", {"cwd": "relative"}, -32602, "cwd: expected the absolute path"),
        ("session/new", {"cwd": "/no/such/directory"}, -32602, "is not a directory"),
        (
            "session/new",
            {"cwd": "/", "mcpServers": {}},
            -32602,
            "mcpServers: expected a list of servers, got dict",
        ),
        (
            "session/new",
            {"cwd": "/", "mcpServers": [{"name": "a", "type": "sse"}]},
            -32602,
            "expected stdio or http",
        ),
        (
            "session/new",
            {"cwd": "/", "mcpServers": [{"name": "a"}]},
            -32602,
            "command: expected a text",
        ),
        (
            "session/load",
            {"cwd": "/", "sessionId": "nowhere"},
            -32002,
            "no session 'nowhere' is stored",
        ),
        ("session/load", {"cwd": "/", "sessionId": "../x"}, -32602, "sessionId"),
        (
            "session/prompt",
            {"sessionId": "nowhere", "prompt": []},
            -32002,
            "no session 'nowhere' is open",
        ),
        (
            "session/prompt",
            {"sessionId": "session-1"},
            -32602,
            "prompt: is missing; expected a list of content blocks",
        ),
        ("session/prompt", {"sessionId": "session-1", "prompt": [7]}, -32602, "prompt[0]"),
        ("session/prompt", {"sessionId": "session-1", "prompt": []}, -32602, "some text"),
        ("session/list", {"cursor": "x"}, -32602, "cursor"),
        ("session/list", {"cwd": 7}, -32602, "cwd: expected a text"),
        ("session/close", {"sessionId": 3}, -32602, "sessionId"),
    ],
)
async def test_wrong_parameters_are_named(method, params, code, message):
    async with connected() as client:
        await client.open()
        error = (await client.answer_to(client.tell(method, **params)))["error"]
        assert error["code"] == code
        assert message in error["message"]


@pytest.mark.parametrize(
    ("servers", "path"),
    [
        (
            [
                {
                    "name": "a",
                    "command": "x",
                    "env": [{"name": "KEY", "value": "s3cret"}, {"value": "s3cret"}],
                }
            ],
            "env[1]",
        ),
        ([{"name": "a", "command": "x", "env": ["s3cret"]}], "env[0]"),
        ([{"name": "a", "command": "x", "env": "s3cret"}], "env"),
        (["s3cret"], "mcpServers[0]"),
        ("s3cret", "mcpServers"),
    ],
)
async def test_mcp_server_secrets_are_hidden_in_errors(servers, path):
    async with connected() as client:
        await client.open()
        answer = await client.answer_to(client.tell("session/new", cwd="/", mcpServers=servers))
        assert f"{path}: " in answer["error"]["message"] or f"{path}." in answer["error"]["message"]
        assert "s3cret" not in answer["error"]["message"]


async def test_mcp_servers_reach_host_as_plan():
    host = Host(has_mcp=True)
    servers = [
        {
            "name": "files",
            "command": "serve",
            "args": ["--all"],
            "env": [{"name": "KEY", "value": "v"}],
        },
        {
            "type": "http",
            "name": "web",
            "url": "https://example.org",
            "headers": [{"name": "X", "value": "y"}],
        },
    ]
    async with connected(host) as client:
        answer = await client.answer_to(client.tell("initialize", protocolVersion=1))
        assert answer["result"]["agentCapabilities"]["mcpCapabilities"] == {
            "http": True,
            "sse": False,
        }
        await client.answer_to(client.tell("session/new", cwd="/", mcpServers=servers))
    assert host.servers == [
        {
            "files": {"command": "serve", "args": ["--all"], "env": {"KEY": "v"}},
            "web": {"url": "https://example.org", "headers": {"X": "y"}},
        }
    ]


async def test_messages_may_come_in_pieces():
    async with connected() as client:
        for byte in json.dumps({**PING, "params": {"protocolVersion": 1}}).encode() + b"\r\n\n":
            client.write(bytes([byte]))
        assert (await client.answer_to(1))["result"]["protocolVersion"] == 1


async def test_overlong_message_is_answered_and_skipped(monkeypatch):
    monkeypatch.setattr("amplifier.servers.acp._connection.MAX_LINE_BYTES", 1 << 20)
    async with connected() as client:
        client.write(b'"' + b"x" * (1 << 20))
        client.write(b"x" * (1 << 20))
        await anyio.wait_all_tasks_blocked()
        assert client._at_client.statistics().current_buffer_used == 0  # the client still writes
        client.write(b'"\n')
        error = await client.next()
        assert (error["id"], error["error"]["code"]) == (None, -32700)
        assert "longer than 1 MiB" in error["error"]["message"]
        assert await client.open()


async def test_requests_with_same_id_get_own_answers():
    async with connected() as client:
        session_id = await client.open()
        for _ in range(3):
            client._numbers = 6
            client.tell("session/list", cursor="100")
        client._numbers = 6
        client.ask(session_id, "say hello")
        answers = [await client.answer_to(7) for _ in range(4)]
        assert ["sessions" in each["result"] for each in answers].count(True) == 3
        assert [each["result"].get("stopReason") for each in answers].count("end_turn") == 1


async def test_stored_sessions_come_in_pages():
    async with connected() as client:
        await client.open()
        first = (await client.answer_to(client.tell("session/list")))["result"]
        last = (await client.answer_to(client.tell("session/list", cursor="100")))["result"]
        assert (len(first["sessions"]), first["nextCursor"], len(last["sessions"])) == (
            50,
            "50",
            20,
        )
        assert "nextCursor" not in last


@pytest.mark.parametrize(
    "outcome",
    [
        {"error": {"code": -32601, "message": "unknown method"}},
        {"error": "broken"},
        {"result": None},
        {"result": {"outcome": {"outcome": "selected", "optionId": "9"}}},
        {"result": {"outcome": "selected"}},
    ],
)
async def test_unknown_option_denies(outcome, tmp_path):
    trace = tmp_path / "trace"
    async with connected() as client:
        number = client.ask(await client.open(), f"call risky {json.dumps({'path': str(trace)})}")
        client.reply((await client.question())["id"], **outcome)
        assert (await client.answer_to(number))["result"]["stopReason"] == "end_turn"
    assert not trace.exists()


async def test_late_answer_is_ignored(tmp_path):
    async with connected() as client:
        session_id = await client.open()
        number = client.ask(
            session_id, f"call risky {json.dumps({'path': str(tmp_path / 'trace')})}"
        )
        question = await client.question()
        client.notify("session/cancel", sessionId=session_id)
        assert (await client.answer_to(number))["result"]["stopReason"] == "cancelled"
        client.reply(question["id"], result={"outcome": {"outcome": "selected", "optionId": "0"}})
        client.reply("never asked", result={})
        assert (await client.answer_to(client.ask(session_id, "say hello")))["result"][
            "stopReason"
        ] == "end_turn"
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("leave", [Client.hang_up, Client.vanish])
async def test_client_vanishing_during_question_leaves_nothing(leave, tmp_path):
    host = Host()
    async with connected(host) as client:
        client.ask(
            await client.open(), f"call risky {json.dumps({'path': str(tmp_path / 'trace')})}"
        )
        await client.question()
        leave(client)
    (session,) = host.made
    assert session.status.status == "cancelled"
    assert not session.initialized
    assert host.turns[-1] == ("session-1", "cancelled")
    assert not (tmp_path / "trace").exists()


async def test_client_not_reading_holds_turn(monkeypatch):
    monkeypatch.setattr("amplifier.servers.acp._connection._DRAIN_SECONDS", 0.0)
    host = Host()
    async with connected(host) as client:
        session_id = await client.open()
        client.is_reading = anyio.Event()
        client.ask(session_id, f"say {'word ' * 1000}")
        await anyio.wait_all_tasks_blocked()
        assert host.made[0].status.status == "running"
        assert client._at_client.statistics().current_buffer_used == 0
        client.hang_up()  # its turn is stopped, and what waits for it is dropped after a while
    assert not host.made[0].initialized


async def test_hundred_sessions_open_and_close():
    host = Host()
    async with connected(host) as client:
        await client.open()
        for _ in range(100):
            client.tell("session/new", cwd="/", mcpServers=[])
        opened = [(await client.answer())["result"]["sessionId"] for _ in range(100)]
        for session_id in opened:
            client.tell("session/close", sessionId=session_id)
        assert [(await client.answer())["result"] for _ in range(100)] == [{}] * 100
        assert sum(session.initialized for session in host.made) == 1


async def test_irrelevant_notifications_are_ignored():
    async with connected() as client:
        session_id = await client.open()
        client.notify("session/cancel", sessionId="nowhere")
        client.notify("session/cancel", sessionId={})
        client.notify("session/cancel", sessionId=session_id)  # no turn runs
        client.notify("$/cancel_request", requestId=7)
        client.notify("no/such/method", x=1)
        client.notify(
            "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "say no"}]
        )
        assert (await client.answer_to(client.ask(session_id, "say hello")))["result"][
            "stopReason"
        ] == "end_turn"


async def test_session_closed_twice_or_during_turn(tmp_path):
    host = Host()
    async with connected(host) as client:
        session_id = await client.open()
        turn = client.ask(session_id, f"call risky {json.dumps({'path': str(tmp_path / 'trace')})}")
        await client.question()
        first = client.tell("session/close", sessionId=session_id)
        second = client.tell("session/close", sessionId=session_id)
        answers: dict[int, Any] = {}
        while len(answers) < 3:
            message = await client.next()
            if "method" not in message:
                answers[message["id"]] = message
        assert answers[turn]["result"]["stopReason"] == "cancelled"
        assert answers[first]["result"] == {}
        assert "no session" in answers[second]["error"]["message"]
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("is_open", [True, False])
async def test_deletion_closes_session_first(is_open):
    host = Host()
    async with connected(host) as client:
        session_id = await client.open()
        if not is_open:
            await client.answer_to(client.tell("session/close", sessionId=session_id))
        assert (await client.answer_to(client.tell("session/delete", sessionId=session_id)))[
            "result"
        ] == {}
        assert host.deleted == [session_id]
        assert not host.made[0].initialized
        assert (
            "no session"
            in (await client.answer_to(client.ask(session_id, "say more")))["error"]["message"]
        )


async def test_missing_mcp_server_is_reported():
    host = Host()

    async def mount_status(coordinator, config):
        problems = [{"error": None}, {"error": "server 'docs' cannot be started"}]
        coordinator.register_capability("mcp.status", lambda: problems)

    host.more["tool-mcp"] = mount_status
    async with connected(host) as client:
        number = client.ask(await client.open(), "say hello")
        shown = await client.said()
        assert (
            shown == "The tools of an MCP server are missing: server 'docs' cannot be started\n\n"
        )
        await client.answer_to(number)


async def test_unsupported_mcp_servers_are_noted():
    host = Host(has_mcp=False)
    async with connected(host) as client:
        await client.answer_to(client.tell("initialize", protocolVersion=1))
        server = {"name": "files", "command": "serve", "args": [], "env": []}
        opened = await client.answer_to(client.tell("session/new", cwd="/", mcpServers=[server]))
        client.ask(opened["result"]["sessionId"], "say hello")
        shown = await client.said()
        assert "(files) are not available" in shown
        assert "tool-mcp" in shown
    assert host.servers == [{}]


async def test_client_with_closed_input_is_reported():
    client = Client()
    client._at_client.close()
    client.tell("initialize", protocolVersion=1)
    with anyio.fail_after(30):
        assert isinstance(await Host().serve(client), BrokenPipeError)
    client.close()
