"""tool-mcp with a remote server that wants a login: the SDK's OAuth flow, tokens in files of their owner."""

from __future__ import annotations

import json
import logging
import socket
import stat
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest

from tests.modules.tools.mcp.desk import Desk, new_session, opened, served
from tests.modules.tools.mcp.test_http import collected

__all__ = ["collected"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served("sdk_oauth_server.py") as port:
        yield f"http://127.0.0.1:{port}/mcp"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def logged_in(servers: dict[str, Any]) -> list[str]:
    """Log in to every server as a user would, call their tools, and return the addresses of the login pages."""
    shown: list[str] = []

    async def browse(page: str) -> None:
        """What the browser of a user does: it follows the redirect to our port."""
        shown.append(page)
        browser.start_soon(
            lambda: anyio.to_thread.run_sync(lambda: httpx2.get(page, follow_redirects=True))
        )

    session, recorder = new_session(servers)
    session.coordinator.register_capability("mcp.login", browse)
    async with anyio.create_task_group() as browser, session:
        for name in servers:
            assert (
                await Desk(session, recorder).call(f"{name}_secret")
            ).output == "the milk is white"
    return shown


def redirect_ports(pages: list[str]) -> list[int | None]:
    return [urlsplit(parse_qs(urlsplit(page).query)["redirect_uri"][0]).port for page in pages]


@pytest.mark.slow
async def test_concurrent_logins_have_own_ports(address, tmp_path):
    servers = {
        name: {"url": address, "oauth": {"token_directory": str(tmp_path / "tokens")}}
        for name in ("one", "two")
    }
    pages = await logged_in(servers)
    ports = redirect_ports(pages)
    assert len(set(ports)) == 2
    for port in ports:
        assert port is not None
        with socket.socket() as probe:  # nothing listens any more
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
async def test_second_login_reuses_free_port(address, tmp_path):
    servers = {"guarded": {"url": address, "oauth": {"token_directory": str(tmp_path)}}}
    (first,) = redirect_ports(await logged_in(servers))
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    for forgotten in ("tokens", "expires_at"):
        del kept[forgotten]
    file.write_text(json.dumps(kept))
    assert redirect_ports(await logged_in(servers)) == [first]


@pytest.mark.slow
async def test_taken_port_of_plan_is_named(address, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        oauth = {"token_directory": str(tmp_path / "tokens"), "redirect_port": port}
        session, recorder = new_session({"guarded": {"url": address, "oauth": oauth}})
        session.coordinator.register_capability("mcp.login", anyio.lowlevel.checkpoint)
        async with session:
            (failed,) = Desk(session, recorder).events("mcp:server_failed")
    assert f"the redirect_port {port} of the plan cannot be used" in failed["error"]
    assert not (tmp_path / "tokens").exists()  # no client was registered for it


@pytest.mark.slow
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_planned_client_authenticates_as_demanded(method, tmp_path):
    oauth = {
        "token_directory": str(tmp_path),
        "client_id": "known",
        "client_secret": "a secret: 100%",
    }
    with served("sdk_oauth_server.py", method) as port:
        servers = {"guarded": {"url": f"http://127.0.0.1:{port}/mcp", "oauth": oauth}}
        (page,) = await logged_in(servers)
        assert parse_qs(urlsplit(page).query)["client_id"] == ["known"]
        httpx2.post(f"http://127.0.0.1:{port}/expire")
        (file,) = tmp_path.iterdir()
        kept = json.loads(file.read_text())
        file.write_text(json.dumps({**kept, "expires_at": 1.0}))
        async with opened(
            servers
        ) as desk:  # renewed without a login, in a process that has discovered nothing
            assert (await desk.call("guarded_secret")).output == "the milk is white"


@pytest.mark.slow
async def test_login_by_command_keeps_tokens(address, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    oauth = {"token_directory": str(tmp_path / "tokens"), "redirect_port": free_port()}
    servers = {"guarded": {"url": address, "oauth": oauth}}
    async with opened(servers) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "needs a login; run: amplifier mcp login guarded --plan FILE" in failed["error"]
        assert failed["error_type"] == "LoginNeeded"

    shown = await logged_in(servers)
    assert len(shown) == 1

    (file,) = (tmp_path / "tokens").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    token = next(word for word in file.read_text().split('"') if word.startswith("token-"))
    async with opened(servers) as desk:
        assert (await desk.call("guarded_secret")).output == "the milk is white"
        assert token not in str(desk.recorder.events)
    assert token not in caplog.text


@pytest.mark.slow
async def test_damaged_token_file_requires_new_login(address, tmp_path):
    folder = tmp_path / "tokens"
    oauth = {"token_directory": str(folder), "redirect_port": free_port()}
    folder.mkdir()
    async with opened({"guarded": {"url": address, "oauth": oauth}}):
        for file in folder.iterdir():
            file.write_text("{damaged")
    async with opened({"guarded": {"url": address, "oauth": oauth}}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "needs a login" in failed["error"]
