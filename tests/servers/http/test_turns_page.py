"""`amplifier turns page`: what it shows of an engine, its buttons, and who may use it; on both backends."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier.durable import open_engine
from amplifier.servers.http.pages import TURNS_PAGE, turns_application
from tests._support.browser import open_tab
from tests._support.terminal import PATIENCE, command, environment
from tests.durable.agents import agent, answering, eventually, tool, until, working

TOKEN = "a-token-for-tests"


async def ask(
    app: Any, method: str, path: str, token: str = TOKEN, query: str = ""
) -> tuple[int, Any]:
    """A request in the same process; returns the status, and the body if it is JSON, else its text."""
    sent: list[Any] = []
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(each.get("body", b"") for each in sent).decode()
    return sent[0]["status"], json.loads(body) if body.startswith("{") else body


async def test_turns_are_listed_shown_stopped_and_released(tmp_path):
    begun = anyio.Event()

    async def hang(given: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with open_engine(tmp_path / "turns.db", poll=0.02) as engine:
        app = turns_application(engine, TOKEN)
        running, waiting = (
            await engine.start("anna", "go"),
            await engine.start("bert", "go", delay=3600),
        )
        async with working(
            engine, agent(answering([("hang", {})], [("hang", {})]), tool("hang", hang))
        ):
            with anyio.fail_after(60):
                await begun.wait()
                status, body = await ask(app, "GET", "/api/turns", query="state=queued")
                assert (status, [each["turn_id"] for each in body["turns"]]) == (200, [waiting])
                assert body["counts"]["states"] == {"running": 1, "queued": 1}
                assert (await ask(app, "GET", f"/api/turns/{running}"))[1]["session_id"] == "anna"
                assert (await ask(app, "POST", f"/api/turns/{running}/release"))[0] == 200
                await until(engine, running, lambda now: now.attempt == 2)
                for turn in (running, waiting):
                    assert (await ask(app, "POST", f"/api/turns/{turn}/stop"))[0] == 200
                    await until(engine, turn, lambda now: now.state == "stopped")
                assert (await ask(app, "POST", f"/api/turns/{running}/resume"))[1][
                    "state"
                ] == "stopped"


@pytest.mark.parametrize(
    ("method", "path", "query", "token", "status", "problem"),
    [
        ("GET", "/api/turns", "", "another-token", 401, "expected Bearer"),
        ("POST", "/api/turns/x/stop", "", "", 401, "expected Bearer"),
        ("GET", "/api/turns", "state=lost", TOKEN, 400, "state must be one of queued, running"),
        ("GET", "/api/turns/x", "", TOKEN, 404, "there is no turn 'x'"),
        ("POST", "/api/turns/x/stop", "", TOKEN, 404, "there is no turn 'x'"),
        ("GET", "/api/turns/x/stop", "", TOKEN, 405, "expected POST"),
    ],
)
async def test_wrong_request_is_refused_with_reason(
    tmp_path, method, path, query, token, status, problem
):
    async with open_engine(tmp_path / "turns.db") as engine:
        found, body = await ask(turns_application(engine, TOKEN), method, path, token, query)
    assert (found, problem in body["error"]["message"]) == (status, True), body


async def test_closed_engine_is_reported(tmp_path):
    async with open_engine(tmp_path / "turns.db") as engine:
        app = turns_application(engine, TOKEN)
        assert "turns.js" in (await ask(app, "GET", TURNS_PAGE, token=""))[1]
    status, body = await ask(app, "GET", "/api/turns")
    assert (status, "was closed" in body["error"]["message"]) == (503, True)


@pytest.mark.slow
async def test_browser_shows_turns_and_stops_one(tmp_path, home, anyio_backend_name):
    words = (
        "turns",
        "--engine",
        str(tmp_path / "turns.db"),
        "page",
        "--backend",
        anyio_backend_name,
    )
    async with open_engine(tmp_path / "turns.db") as engine:
        turn = await engine.start("anna", "go")
        async with await anyio.open_process(
            command(*words), env=environment(home, {}), stderr=None
        ) as process:
            assert process.stdout is not None
            text = ""
            with anyio.fail_after(PATIENCE):
                while "Ctrl-C" not in text:
                    text += (await process.stdout.receive()).decode()
            found = re.search(r"http://127\.0\.0\.1:\d+/turns#token=\S+", text)
            assert found is not None, text
            await anyio.to_thread.run_sync(click_stop, found[0], turn)

            async def is_stopped() -> bool:
                return (await engine.status(turn)).state == "stopped"

            await eventually(is_stopped)
            process.send_signal(signal.SIGINT)
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == 130


def click_stop(page: str, turn: str) -> None:
    """In a browser: wait for the row of the turn and press its button."""
    with open_tab() as tab:
        tab.open(page, width=900)
        row = f"[...document.querySelectorAll('#turns tr')].find((row) => row.cells[0].textContent === '{turn}')"
        while not tab.evaluate(f"Boolean({row})"):
            pass
        assert tab.evaluate(f"{row}.cells[2].textContent") == "queued"
        assert "1 queued; the oldest open one is" in tab.evaluate(
            "document.getElementById('counts').textContent"
        )
        tab.evaluate(
            f"[...{row}.querySelectorAll('button')].find((each) => each.textContent === 'stop').click()"
        )
        while '"stopped"' not in tab.evaluate("document.getElementById('shown').textContent"):
            pass
