"""tool-mcp over streamable HTTP, with a server on the official SDK."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import anyio
import pytest

from amplifier.testing import wait_for
from tests.modules.tools.mcp.desk import opened, served

# The SDK leaves generators of httpx2 to the garbage collector, which trio warns of.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"
)


def serving(port: int = 0) -> AbstractContextManager[int]:
    return served("sdk_http_server.py", str(port))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Generators are collected while the warning about them is ignored, not in another test."""
    yield
    gc.collect()


@pytest.fixture(params=["auto", "legacy"])
def web(port: int, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The server, as a plan names it, in both forms of the protocol."""
    return {"url": f"http://127.0.0.1:{port}/mcp", "protocol": request.param}


async def test_remote_server_tools_are_called(web):
    async with opened({"web": web}) as desk:
        assert (await desk.call("web_add", a=2, b=3)).output == {"result": 5}
        assert desk.status("web")["protocol"] == (
            "2025-11-25" if web["protocol"] == "legacy" else "2026-07-28"
        )


async def test_stop_reaches_remote_server(web, tmp_path):
    file = tmp_path / "notes"
    async with opened({"web": web}) as desk:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: desk.call("web_hang", note=str(file)))
            assert await wait_for(
                lambda: bool(desk.events("mcp:progress")) and file.exists(), timeout=60
            )
            group.cancel_scope.cancel()
        assert await wait_for(lambda: "cancelled" in file.read_text(), timeout=60)
        assert (await desk.call("web_add", a=1, b=1)).success


async def test_announced_remote_tools_are_mounted(port):
    names = (f"learnt-{uuid.uuid4().hex}" for _ in itertools.count())
    async with opened({"web": {"url": f"http://127.0.0.1:{port}/mcp"}}) as desk:
        assert desk.status("web")["protocol"] == "2026-07-28"

        async def has_learnt() -> (
            bool
        ):  # again and again: the first notices come before the subscription
            await desk.call("web_learn", name=next(names))
            return bool(desk.events("mcp:tools_changed"))

        assert await wait_for(has_learnt, timeout=60)
        (added, *_) = desk.events("mcp:tools_changed")[0]["added"]
        assert (await desk.call(f"web_{added}")).output == "learnt"


@pytest.mark.slow
async def test_large_result_arrives(web):
    async with opened({"web": web}, max_result_chars=5_000_000) as desk:
        assert len((await desk.call("web_big", size=3_000_000)).output) == 3_000_000


async def test_sent_headers_stay_out_of_events(web, caplog):
    caplog.set_level(logging.DEBUG, "amplifier")
    caplog.set_level(logging.INFO)
    secret = "abc-123-def-456"
    async with opened({"web": {**web, "headers": {"Authorization": f"Bearer {secret}"}}}) as desk:
        assert (await desk.call("web_header", name="authorization")).output == f"Bearer {secret}"
        denied = {
            **web,
            "url": web["url"].replace("/mcp", "/denied"),
            "headers": {"Authorization": f"Bearer {secret}"},
        }
    async with opened({"web": denied}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert (
            "answered HTTP 401 Unauthorized; check the headers in the plan, or set oauth: true"
            in failed["error"]
        )
        assert secret not in str(desk.recorder.events)
    assert secret not in caplog.text


async def test_server_with_older_transport_is_named(web):
    async with opened({"old": {**web, "url": web["url"].replace("/mcp", "/sse")}}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert (
            "HTTP 405 Method Not Allowed; it may support only the older HTTP with SSE"
            in failed["error"]
        )


async def test_redirects_stay_on_host(web):
    elsewhere, moved = (
        {**web, "url": web["url"].replace("/mcp", path)} for path in ("/elsewhere", "/moved")
    )
    async with opened({"elsewhere": elsewhere, "moved": moved}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "Redirect to http://localhost:9/mcp not followed" in failed["error"]
        assert "hidden" not in failed["error"]
        assert (await desk.call("moved_add", a=1, b=1)).output == {"result": 2}


async def test_silent_server_is_named_with_address():
    async with opened({"web": {"url": "http://127.0.0.1:9/mcp?key=hidden"}}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert (
            "server 'web' at http://127.0.0.1:9/mcp cannot be used: ConnectError" in failed["error"]
        )
        assert "hidden" not in failed["error"]


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_restarted_server_is_used_again(protocol):
    with serving() as port:
        session = opened({"web": {"url": f"http://127.0.0.1:{port}/mcp", "protocol": protocol}})
        desk = await session.__aenter__()
        try:
            assert (await desk.call("web_add", a=1, b=1)).success
        except BaseException:
            await session.__aexit__(*sys.exc_info())
            raise
    try:
        gone = await desk.call("web_add", a=1, b=1)
        assert gone.error["type"] in ("ServerCrashed", "ServerUnavailable")
        with serving(port):
            assert await wait_for(lambda: _adds(desk), timeout=60)
    finally:
        await session.__aexit__(None, None, None)


async def _adds(desk: Any) -> bool:
    return (await desk.call("web_add", a=1, b=1)).success
