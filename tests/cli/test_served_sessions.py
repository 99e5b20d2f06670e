"""Sessions for editors and clients over HTTP: the plan with the client's MCP servers, the working directory, the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.cli.agent.served_sessions import ServedSessions
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import SessionBusyError
from amplifier.servers import SessionRequest
from amplifier.servers.http.requests import problem_of
from amplifier.store.folders import SessionLock

SERVERS = {"files": {"command": "serve"}, "web": {"url": "https://example.org"}}


def made(home, workdir, plan, tools, *, is_resumed=False):
    content = json.loads(Path(plan).read_text())
    (workdir / "plan.json").write_text(json.dumps({**content, "tools": tools}))
    sessions = ServedSessions(
        store=SessionStore(home / "sessions"),
        display=Display(StandardStreams(), "text", quiet=True),
        available=frozenset({"tool-mcp"}),
        plan=workdir / "plan.json",
    )
    assert sessions.has_mcp
    return sessions.make(
        SessionRequest(session_id="one", directory=workdir, servers=SERVERS, is_resumed=is_resumed)
    )


def test_client_servers_are_added_as_tool_mcp(home, workdir, plan):
    session = made(home, workdir, plan, ["tool-todo"])
    assert session.config["tools"] == [
        "tool-todo",
        {"module": "tool-mcp", "config": {"servers": SERVERS}},
    ]
    assert session.coordinator.get_capability("session.working_dir") == str(workdir)


@pytest.mark.parametrize("key", ["servers", "mcpServers"])
def test_plan_servers_win_over_client_servers(key, home, workdir, plan):
    own = {"files": {"command": "mine"}}
    session = made(
        home, workdir, plan, [{"module": "tool-mcp", "config": {key: own, "share": False}}]
    )
    (entry,) = session.config["tools"]
    assert entry["config"] == {"servers": {**SERVERS, **own}, "share": False}


def test_bare_module_in_plan_gets_servers(home, workdir, plan):
    (entry,) = made(home, workdir, plan, ["tool-mcp"]).config["tools"]
    assert entry == {"module": "tool-mcp", "config": {"servers": SERVERS}}


def test_session_open_elsewhere_is_conflict(home, workdir, plan):
    (home / "sessions" / "one").mkdir(parents=True)
    lock = SessionLock(home / "sessions" / "one")
    with pytest.raises(SessionBusyError, match="open in another process") as refused:
        made(home, workdir, plan, [], is_resumed=True)
    lock.release()
    assert problem_of(refused.value).status == 409
