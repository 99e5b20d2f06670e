"""The Agent Client Protocol: its schema over every message, with the official client.

All tests of tests/servers/acp that use this client check their messages in the same way.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import acp
import pytest

from tests.cli._scripted_agent import call
from tests.servers.acp._editor import edit, editing
from tests.servers.acp._schema import Wire

pytestmark = pytest.mark.slow

KINDS = {
    *(
        f"agent {method} {kind}"
        for method in ("initialize", "session/new")
        for kind in ("Request", "Response")
    ),
    *(
        f"agent {method} {kind}"
        for method in ("session/load", "session/list", "session/close")
        for kind in ("Request", "Response")
    ),
    *(
        "agent session/prompt Request",
        "agent session/prompt Response",
        "agent session/cancel Notification",
    ),
    *("client session/request_permission Request", "client session/request_permission Response"),
    *("client session/update Notification", "agent Error"),
}


def test_every_message_kind_fits_schema(backend, home, workdir, plan):
    async def scenario() -> Any:
        async with editing(backend, plan, home, workdir) as editor:
            session_id = await editor.open(workdir)
            await editor.ask(session_id, "say one two")
            await editor.ask(session_id, call("risky", path=str(workdir / "allowed")))
            await editor.ask(session_id, call("crash"))
            with pytest.raises(acp.RequestError):
                await editor.ask(session_id, "fail")
            editor.answer = "never"
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(
                    editor.ask(session_id, call("risky", path=str(workdir / "cancelled")))
                )
                editor.asked.clear()
                await editor.asked.wait()
                await editor.agent.cancel(session_id=session_id)
            assert asked.result().stop_reason == "cancelled"
            assert (await editor.agent.list_sessions()).sessions
            await editor.agent.close_session(session_id=session_id)
            await editor.agent.load_session(cwd=str(workdir), session_id=session_id, mcp_servers=[])
            return editor.wire

    assert edit(scenario).checked >= KINDS


def test_deviations_are_found():
    wire = Wire()
    for to_agent, message in (
        (
            True,
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {"protocolVersion": "one"},
            },
        ),
        (False, {"jsonrpc": "2.0", "id": 1, "result": {}}),
        (False, {"jsonrpc": "2.0", "id": 9, "result": {}}),
        (False, {"id": 2, "method": "session/walk", "params": {}}),
    ):
        wire.note(json.dumps(message).encode() + b"\n", to_agent=to_agent)
    assert [problem.partition(":")[0] for problem in wire.problems] == [
        "agent initialize Request",
        "agent initialize Response",
        "an answer to no request",
        "jsonrpc",
        "client session/walk Request is not in the schema",
    ]
