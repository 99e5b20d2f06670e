"""tool-mcp with a remote server that wants a login: the SDK's OAuth flow, tokens in files of their owner."""

from __future__ import annotations

import logging
import socket
import stat
from collections.abc import Iterator

import anyio.to_thread
import httpx2
import pytest

from tests.modules.tools.mcp.desk import Desk, new_session, opened, served
from tests.modules.tools.mcp.test_http import collected

__all__ = ["collected"]

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served("sdk_oauth_server.py") as port:
        yield f"http://127.0.0.1:{port}/mcp"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
async def test_a_login_is_asked_for_by_command_and_its_tokens_are_kept(address, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    oauth = {"token_directory": str(tmp_path / "tokens"), "redirect_port": free_port()}
    servers = {"guarded": {"url": address, "oauth": oauth}}
    async with opened(servers) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "needs a login; run: amplifier mcp login guarded --plan FILE" in failed["error"]
        assert failed["error_type"] == "LoginNeeded"

    shown: list[str] = []

    async def browse(page: str) -> None:
        """What the browser of a user does: it follows the redirect to our port."""
        shown.append(page)
        browser.start_soon(lambda: anyio.to_thread.run_sync(lambda: httpx2.get(page, follow_redirects=True)))

    session, recorder = new_session(servers)
    session.coordinator.register_capability("mcp.login", browse)
    async with anyio.create_task_group() as browser, session:
        assert (await Desk(session, recorder).call("guarded_secret")).output == "the milk is white"
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
async def test_a_damaged_token_file_asks_for_a_login_again(address, tmp_path):
    folder = tmp_path / "tokens"
    oauth = {"token_directory": str(folder), "redirect_port": free_port()}
    folder.mkdir()
    async with opened({"guarded": {"url": address, "oauth": oauth}}):
        for file in folder.iterdir():
            file.write_text("{damaged")
    async with opened({"guarded": {"url": address, "oauth": oauth}}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "needs a login" in failed["error"]
