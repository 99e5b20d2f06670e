"""An agent as an MCP server whose tokens come from an authorization server: its metadata, its checks, and a login by tool-mcp."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx2
import pytest
from mcp.server.auth.settings import AuthSettings

from amplifier import AmplifierSession
from amplifier.servers.mcp import serve
from tests._support.forked import Forked
from tests._support.tree import ROOT
from tests.modules.tools.mcp.desk import Desk, new_session, opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Generators are collected while the warning about them is ignored, not in another test."""
    yield
    gc.collect()


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator[str]:
    """Run a Python program; what it prints when it is ready."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with Forked(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


@attrs.frozen
class Guarded:
    url: str
    issuer: str
    backend: str


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    """The agent, on either backend, and its authorization server, which is that of the official SDK."""
    folder = ROOT / "tests"
    with ExitStack() as stack:
        port = stack.enter_context(
            program(str(folder / "modules" / "tools" / "mcp" / "sdk_oauth_server.py"))
        )
        issuer = f"http://127.0.0.1:{port}"
        agent = str(folder / "servers" / "mcp" / "agent_program.py")
        url = stack.enter_context(program(agent, request.param, "http", ISSUER=issuer))
        yield Guarded(url, issuer, request.param)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_request_without_token_names_authorization_server(guarded):
    metadata = guarded.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
    async with httpx2.AsyncClient() as client:
        for headers in ({}, {"Authorization": "Bearer invented"}):
            refused = await client.post(guarded.url, json={}, headers=headers)
            assert refused.status_code == 401
            assert f'resource_metadata="{metadata}"' in refused.headers["www-authenticate"]
        described = (await client.get(metadata)).json()
        assert described["resource"] == guarded.url
        assert [each.rstrip("/") for each in described["authorization_servers"]] == [guarded.issuer]
        elsewhere = await client.get(metadata, headers={"Host": "evil.example"})
        assert elsewhere.status_code == 403


async def log_in(servers: dict[str, Any]) -> None:
    """Log in, and run the agent."""

    async def browse(page: str) -> None:
        """What the browser of a user does."""
        browser.start_soon(
            lambda: anyio.to_thread.run_sync(lambda: httpx2.get(page, follow_redirects=True))
        )

    session, recorder = new_session(servers)
    session.coordinator.register_capability("mcp.login", browse)
    async with anyio.create_task_group() as browser, session:
        result = await Desk(session, recorder).call("agent_run", prompt="hello")
        assert result.success
        assert "HELLO" in str(result.output)


async def test_tool_mcp_logs_in_and_runs_agent(guarded, tmp_path: Path):
    oauth = {"token_directory": str(tmp_path / "tokens"), "redirect_port": free_port()}
    servers = {"agent": {"url": guarded.url, "oauth": oauth}}
    async with opened(servers) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert failed["error_type"] == "LoginNeeded"
    await log_in(servers)
    async with opened(servers) as desk:  # with the tokens that were kept
        assert "AGAIN" in str((await desk.call("agent_run", prompt="again")).output)


async def test_tool_mcp_renews_expired_token(guarded, tmp_path: Path):
    """The authorization server has another address than the agent, which refuses the old token."""
    oauth = {"token_directory": str(tmp_path / "tokens"), "redirect_port": free_port()}
    servers = {"agent": {"url": guarded.url, "oauth": oauth}}
    await log_in(servers)
    (file,) = (tmp_path / "tokens").iterdir()
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "expires_at": 1}))
    httpx2.post(f"{guarded.issuer}/expire")
    async with opened(servers) as desk:  # no browser is there
        assert "AGAIN" in str((await desk.call("agent_run", prompt="again")).output)
    renewed = json.loads(file.read_text())
    assert renewed["tokens"]["access_token"] != kept["tokens"]["access_token"]
    assert renewed["expires_at"] > kept["expires_at"] - 60


@pytest.mark.parametrize(
    "given", [{"auth": True}, {"token_verifier": True}, {"auth": True, "token_verifier": True}]
)
async def test_contradictory_options_are_refused(given):
    auth = AuthSettings.model_validate(
        {
            "issuer_url": "http://a.example",
            "resource_server_url": None,
            "validate_token_resource": None,
        }
    )
    values: dict[str, Any] = {"auth": auth, "token_verifier": object()}
    with pytest.raises(
        ValueError, match="auth: expected together with token_verifier, and without token"
    ):
        await serve(
            lambda: AmplifierSession({}),
            transport="http",
            token="a-token-for-the-tests",
            **{name: values[name] for name in given},
        )
