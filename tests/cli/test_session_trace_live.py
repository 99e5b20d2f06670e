"""`amplifier session trace --live`: the page follows a session, only with the token, until Ctrl-C; on both backends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.store import SessionRecord
from tests._support.backends import mostly_on
from tests._support.browser import open_tab, page_file
from tests._support.terminal import PATIENCE, start
from tests.cli._scripted_agent import call, write_plan
from tests.tracing._logs import small_session, turn


@attrs.frozen
class Answer:
    status: int
    policy: str
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@attrs.frozen
class Live:
    process: subprocess.Popen[str]
    address: str
    token: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def get(self, path: str, token: str | None = None, **headers: str) -> Answer:
        given = self.token if token is None else token
        all_headers = {**({"Authorization": f"Bearer {given}"} if given else {}), **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path, headers=all_headers)
            answer = connection.getresponse()
            return Answer(
                answer.status,
                answer.headers.get("content-security-policy", ""),
                answer.read().decode(),
            )
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


ROWS = "/api/sessions/s/trace"


@contextmanager
def following(
    backend: str, home: Path, cwd: Path, *words: str, browser: str = "false"
) -> Iterator[Live]:
    log = cwd / "live.log"
    with (
        log.open("w") as errors,
        start(
            *("session", "trace", "--live", "--backend", backend, *words),
            home=home,
            cwd=cwd,
            extra={"BROWSER": browser},
            stderr=errors,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(
                r"(http://127\.0\.0\.1:\d+)/trace#token=([^&\s]+)&traced=\S+",
                process.stdout.readline(),
            )
            assert found is not None, log.read_text()
            yield Live(process, found[1], found[2], log)
            if process.poll() is None:
                assert process.stdout.readline() == "Ctrl-C ends it.\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 130
            assert "Traceback" not in log.read_text(), log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture
def store(home) -> SessionStore:
    store = SessionStore(home / "sessions")
    store.write(SessionRecord(session_id="s"))
    store.folder("s").mkdir()
    (store.folder("s") / "events.jsonl").write_bytes(b"".join(small_session()))
    return store


@pytest.mark.slow
def test_rows_need_token_and_change(backend, store, home, workdir):
    with following(backend, home, workdir, "s") as live:
        page = live.get("/trace", token="")
        assert page.status == 200
        assert "connect-src 'self'; frame-ancestors 'none'" in page.policy
        assert "hello" not in page.text
        assert [
            live.get(path, token=token).status for path in (ROWS, "/x") for token in ("", "wrong")
        ] == [401] * 4
        assert live.get("/x").status == 404
        assert live.get(ROWS, Host="evil.example").status == 403
        assert live.get(ROWS, Origin="https://evil.example").status == 403
        assert live.get(f"{ROWS}?after=x").status == 400
        assert live.get("/api/sessions/unknown/trace").status == 404

        first = live.get(f"{ROWS}?after=0").json()
        assert [row["k"] for row in first["rows"]] == ["session", "turn", "model", "tool", "model"]
        assert first["running"] is False
        again = live.get(f"{ROWS}?after={first['revision']}").json()
        assert (again["rows"], again["revision"]) == ([], first["revision"])

        log = store.folder("s") / "events.jsonl"
        log.rename(log.with_name("events.jsonl.1"))  # as rotation does
        new = turn(9, end=10)
        log.write_bytes(b"".join(new)[:-20])
        more = live.get(f"{ROWS}?after={first['revision']}").json()
        assert [(row["n"], row["k"]) for row in more["rows"]] == [(0, "session"), (5, "turn")]
        with log.open("ab") as file:
            file.write(b"".join(new)[-20:])
        last = live.get(f"{ROWS}?after={more['revision']}").json()
        assert [len(row["v"]) for row in last["rows"] if row["k"] == "turn"] == [3]


@pytest.mark.slow
@mostly_on("asyncio")
def test_missing_log_opens_browser_beside_server(backend, home, workdir):
    SessionStore(home / "sessions").write(SessionRecord(session_id="s"))
    browser = workdir / "browser"
    browser.write_text(
        f"#!/bin/sh\nprintf %s \"$1\" > '{workdir}/opened.new'\nmv opened.new opened\nexec cat '{workdir}/never'\n"
    )
    browser.chmod(0o755)
    os.mkfifo(workdir / "never")  # a browser in the terminal does not return
    with following(backend, home, workdir, "--open", browser=f"{browser} %s") as live:
        shown = live.get(ROWS).json()
        assert (shown["rows"], shown["notes"][0][:37]) == (
            [],
            "nothing is in the event log yet; hook",
        )
        while not (workdir / "opened").exists():
            time.sleep(0.01)  # another process makes it
        page = f"{live.address}/trace#token={live.token}&amp;traced=s"
        file = page_file((workdir / "opened").read_text(), live.token)
        assert f'url={page}"' in file.read_text()
        assert live.stop() == 130
    (workdir / "never").open("w").close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_ends_server_with_open_connections(backend, store, home, workdir, number, code):
    with following(backend, home, workdir) as live:
        port = live.port
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(b"GET /trace HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert live.get(ROWS).status == 200
            assert live.stop(number) == code
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.slow
def test_page_follows_running_session(backend, home, workdir, tmp_path):
    file = write_plan(tmp_path)
    plan = json.loads(file.read_text())
    plan["hooks"].append({"module": "hooks-logging"})
    file.write_text(json.dumps(plan))
    prompt = call("wait_for", path=workdir / "gate")
    words = ("run", prompt, "--session-id", "one", "--plan", str(file), "--backend", backend)
    with start(*words, home=home, cwd=workdir, stdout=subprocess.DEVNULL) as run:
        assert run.stderr is not None
        assert any("wait_for" in line for line in run.stderr)
        with following(backend, home, workdir) as live, open_tab() as tab:
            tab.open(f"http://localhost:{live.port}/trace#token=wrong&traced=one", width=390)
            tab.wait_until(
                "document.getElementById('state').textContent.includes('needs the token')"
            )
            assert tab.evaluate("document.querySelectorAll('.row').length") == 0

            tab.open(f"{live.address}/trace#token={live.token}&traced=one", width=1280)
            tool = "document.querySelector('.row.tool')"
            tab.wait_until(f"{tool}?.classList.contains('open')")
            assert (
                tab.evaluate("location.href") == f"{live.address}/trace"
            )  # the token does not stay in the address
            tab.wait_until(
                "document.getElementById('state').textContent === 'The session is running.'"
            )
            tab.evaluate(f"{tool}.click()")
            (workdir / "gate").touch()
            tab.wait_until(f"{tool}.classList.contains('ok')")
            tab.wait_until("document.querySelector('.row.session').classList.contains('ok')")
            tab.wait_until(
                "document.getElementById('state').textContent === 'The session is not running now.'"
            )
            assert tab.evaluate("document.querySelectorAll('.row.model').length") == 2
            assert (
                tab.evaluate("document.querySelector('.row[aria-selected=true] .name').textContent")
                == "tool wait_for"
            )
            run.stderr.read()
            assert run.wait(PATIENCE) == 0
            assert live.stop() == 130
            tab.wait_until("document.getElementById('state').textContent.includes('has ended')")
