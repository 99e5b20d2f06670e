"""`amplifier serve` as a process: what it prints, how it ends, what it refuses to begin with."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from amplifier.store import SessionIndex
from tests._support.browser import page_file
from tests._support.terminal import run_cli, start
from tests.servers.http._server import PATIENCE, Server, ask, connect, running


@pytest.mark.slow
def test_ui_opens_default_agent_in_browser(backend, home, workdir):
    browser = workdir / "browser"
    browser.write_text(
        f"#!/bin/sh\nprintf %s \"$1\" > '{workdir}/new'\nmv '{workdir}/new' '{workdir}/opened'\n"
    )
    browser.chmod(0o755)
    words, variables = ("ui", "-p", "offline", "--backend", backend), {"BROWSER": f"{browser} %s"}
    with start(*words, home=home, cwd=workdir, extra=variables, stderr=None) as process:
        assert process.stdout is not None
        page = [process.stdout.readline() for _ in range(4)][1].removeprefix("Chat page: ").strip()
        give_up = time.monotonic() + PATIENCE
        while not (workdir / "opened").exists():
            assert time.monotonic() < give_up
            time.sleep(0.01)  # another process makes it
        token, address = page.rpartition("=")[2], page.partition("/#")[0]
        file = page_file((workdir / "opened").read_text(), token)
        assert f'url={page}"' in file.read_text()
        request = urllib.request.Request(
            f"{address}/api/sessions?stored", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert json.load(response) == {
                "sessions": [],
                "stored": [],
                "elsewhere": [],
                "reports": [],
            }
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert not file.exists()


def events_of(server: Server, session_id: str, *kinds: str) -> list[Any]:
    """The first event of each of these types, in this order."""
    connection = connect(server)
    connection.request("GET", f"/api/sessions/{session_id}/events", headers=server.headers)
    response = connection.getresponse()
    found = []
    for kind in kinds:
        line = b""
        while f'"type":"{kind}"'.encode() not in line:
            line = response.readline()
            assert line, f"no event of type {kind}"
        found.append(json.loads(line.removeprefix(b"data: ")))
    connection.close()
    return found


@pytest.mark.slow
def test_killed_turn_continues(backend, home, workdir, plan):
    content = json.loads(Path(plan).read_text())
    content["session"]["context"] = {
        "module": "context-persistent",
        "config": {"durable_turns": True},
    }
    Path(plan).write_text(json.dumps(content))
    gate, late = workdir / "gate", workdir / "late"
    gate.touch()
    inputs = (json.dumps({"path": str(path)}, separators=(",", ":")) for path in (gate, late))
    with running(backend, plan, home, workdir) as server:
        body = {"session_id": "anna", "metadata": {"user": "Änne"}}
        assert ask(server, "POST", "/api/sessions", body)[0] == 201
        ask(server, "POST", "/api/sessions/anna/turns", {"prompt": f"both {' '.join(inputs)}"})
        events_of(server, "anna", "tool_finished")
        sessions = SessionIndex(home / "sessions")
        while not any(
            step["step"] == "finished" for step in sessions.steps("anna")
        ):  # shortly after the event
            assert ask(server, "GET", "/api/sessions/anna")[1]["status"] == "running"
        server.kill()
    gate.unlink()  # its call must not run again
    late.touch()
    with running(backend, plan, home, workdir) as server:
        assert ask(server, "POST", "/api/sessions", {"session_id": "anna"})[1]["metadata"] == {
            "user": "Änne"
        }
        assert ask(server, "POST", "/api/sessions/anna/turns", {"resume": True})[0] == 202
        started, asked = events_of(server, "anna", "turn_started", "approval_required")
        assert started["prompt"] is None
        assert "wait_for" in asked["prompt"]
        option = {"option": asked["options"][0]}
        assert (
            ask(server, "POST", f"/api/sessions/anna/approvals/{asked['question']}", option)[0]
            == 200
        )
        (ended,) = events_of(server, "anna", "turn_ended")
        assert ended["status"] == "success"
        messages = ask(server, "GET", "/api/sessions/anna")[1]["messages"]
        assert [each["content"] for each in messages if each["role"] == "tool"] == [
            "it is there"
        ] * 2
        turn = ask(server, "POST", "/api/sessions/anna/turns", {"prompt": "history", "wait": True})[
            1
        ]
        assert turn["result"] == "2 prompts so far "
        assert ask(server, "DELETE", "/api/sessions/anna")[0] == 204
    assert not (home / "sessions" / "anna").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_lets_running_tool_finish(number, code, backend, home, workdir, plan):
    with running(backend, plan, home, workdir) as server:
        ask(server, "POST", "/api/sessions", {"session_id": "anna"})
        prompt = f"call wait_for {json.dumps({'path': str(workdir / 'gate')})}"
        ask(server, "POST", "/api/sessions/anna/turns", {"prompt": prompt})
        connection = connect(server)
        connection.request("GET", "/api/sessions/anna/events", headers=server.headers)
        response = connection.getresponse()
        while b"tool_started" not in response.readline():
            pass
        server.process.send_signal(number)
        (workdir / "gate").touch()
        assert server.process.wait(PATIENCE) == code
        connection.close()
    assert not (workdir / "gate.cancelled").exists()
    stored = run_cli("session", "show", "anna", home=home, cwd=workdir).stdout
    assert "it is there" in stored


def test_signal_ends_server_during_question(backend, home, workdir, plan):
    with running(backend, plan, home, workdir) as server:
        ask(server, "POST", "/api/sessions", {"session_id": "anna"})
        prompt = f"call risky {json.dumps({'path': str(workdir / 'trace')})}"
        ask(server, "POST", "/api/sessions/anna/turns", {"prompt": prompt})
        connection = connect(server)
        connection.request("GET", "/api/sessions/anna/events", headers=server.headers)
        response = connection.getresponse()
        while b"approval_required" not in response.readline():
            pass
        assert server.stop() == 0
        connection.close()
        assert "Stopping: up to 10 s for 1 turn to end" in server.log.read_text()
    assert not (workdir / "trace").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "AMPLIFIER_SERVE_TOKEN: expected at least 16"),
        (
            ["--no-token", "-p", "openai-compatible", "--port", "0"],
            "no address",
        ),  # before the first client comes
        (["--host", "0.0.0.0"], "needs --allow-host"),
        (["--host", "0.0.0.0", "--no-token"], "on this machine only"),
        (["--host", "no-such-host.invalid"], "cannot listen on no-such-host.invalid"),
        (["--token-file", "short"], "at least 16 printable ASCII characters"),
        (["--token-file", "short", "--no-token"], "exclude each other"),
        (["--max-turns", "0"], "--max-turns"),
    ],
)
def test_wrong_options_are_refused_with_reason(options, message, home, workdir, plan):
    (workdir / "short").write_text("short")
    words, extra = (
        ("serve", *([] if "openai-compatible" in options else [plan])),
        {} if options else {"AMPLIFIER_SERVE_TOKEN": "short"},
    )
    finished = run_cli(*words, *options, home=home, cwd=workdir, extra=extra)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert message in finished.stderr


def test_taken_port_is_reported(home, workdir, plan):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finished = run_cli(
            "serve", plan, "--port", str(taken.getsockname()[1]), home=home, cwd=workdir
        )
    assert finished.returncode == 2
    assert "Address already in use" in finished.stderr
