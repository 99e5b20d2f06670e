"""Clients that send nonsense, send nothing, vanish, or do everything at once: a clear answer each, and nothing is left."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.servers.http import Limits
from tests._support.tree import ROOT
from tests.servers.http._asgi_client import serving
from tests.servers.http._server import PATIENCE, Server, ask, running


def exchange(server: Server, data: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(data)
            while more := connection.recv(65536):
                received += more
        except ConnectionError:  # closed while there was more to send
            pass
    return received


def request(server: Server, first: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    known = [
        b"Host: localhost",
        f"Authorization: Bearer {server.token}".encode(),
        b"Content-Type: application/json",
    ]
    return b"\r\n".join([first, *known, *headers, b"", body])


CHAT = b"POST /v1/chat/completions HTTP/1.1"


@pytest.mark.parametrize(
    ("first", "headers", "body", "status"),
    [
        (b"\0\1\2 nonsense", [], b"", 400),
        (b"GET \xff\xfe HTTP/1.1", [], b"", 400),
        (b"GET /v1/models HTTP/1.1", [b"Host: evil.example"], b"", 400),
        (b"GET /v1/models HTTP/1.1", [b"Nul: \0"], b"", 400),
        (b"GET /v1/models HTTP/1.1", [b"Long: " + b"x" * 200_000], b"", (400, 431)),
        (b"GET /api/sessions/%00%ff%2e%2e HTTP/1.1", [b"Connection: close"], b"", 404),
        (CHAT, [b"Content-Length: -5"], b"", 400),
        (CHAT, [b"Content-Length: 2", b"Content-Length: 3"], b"{}", 400),
        (CHAT, [b"Transfer-Encoding: chunked"], b"ZZ\r\n", 400),
        (CHAT, [b"Transfer-Encoding: chunked", b"Connection: close"], b"2\r\n{}\r\n0\r\n\r\n", 400),
        (CHAT, [b"Content-Length: 5000000", b"Connection: close"], b"", 413),
    ],
)
def test_malformed_request_is_refused(first, headers, body, status, server):
    answer = exchange(server, request(server, first, *headers, body=body))
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    assert int(answer.split()[1]) in (status if isinstance(status, tuple) else (status,))
    assert ask(server, "GET", "/v1/models")[0] == 200


@pytest.mark.slow
def test_incomplete_connections_are_closed(server):
    head = request(server, b"GET /v1/models HTTP/1.1").removesuffix(b"\r\n")
    whole = head + b"\r\n"
    unread = request(server, CHAT, b"Content-Length: 5000000")
    with ExitStack() as stack:
        connections = []
        for sent in (b"", b"GET / HT", head, whole + head, unread):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            connections.append(stack.enter_context(connection))
            connection.sendall(sent)
        for connection in connections:
            while connection.recv(65536):
                pass  # up to the end
    assert ask(server, "GET", "/v1/models")[0] == 200


_STREAMS = """
import json, sys
import anyio, httpx2

async def follow(http, counts):
    body = {"messages": [{"role": "user", "content": "pace 0.05 100000"}], "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if "piece" in line and not counts.get(response):
                counts[response] = True
                if len(counts) == 50:
                    print("all stream", flush=True)

async def main():
    address, headers = json.loads(sys.argv[1])
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=address, headers=headers, limits=limits, timeout=60) as http:
        async with anyio.create_task_group() as group:
            counts = {}
            for _ in range(50):
                group.start_soon(follow, http, counts)
    print("all ended", flush=True)

anyio.run(main)
"""


@pytest.mark.slow
def test_server_stopped_during_turns_ends_responses(backend, home, workdir, plan):
    with running(backend, plan, home, workdir, "--shutdown-seconds", "0.2") as server:
        given = json.dumps([server.address, server.headers])
        words = [sys.executable, "-c", _STREAMS, given]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as clients:
            assert clients.stdout is not None
            assert clients.stdout.readline() == "all stream\n"
            assert server.stop() == 0
            assert clients.stdout.readline() == "all ended\n"  # whole responses: none was cut off
            assert clients.wait(PATIENCE) == 0


async def test_hundred_sessions_open_and_drop_at_once():
    async with serving(limits=Limits(sessions=100)) as client:
        answers: list[Any] = []

        async def use(number: int) -> None:
            answer = await client.ask("POST", "/api/sessions", {"session_id": f"s{number}"})
            answers.append(answer.status)
            turn = await client.ask(
                "POST", f"/api/sessions/s{number}/turns", {"prompt": "say hi", "wait": True}
            )
            answers.append(turn.json().get("status", turn.json()))
            answers.append((await client.ask("DELETE", f"/api/sessions/s{number}")).status)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(use, number)
        assert {each: answers.count(each) for each in answers} == {201: 40, "success": 40, 204: 40}
        assert client.factory.open() == 0


async def test_one_of_many_session_requests_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(storage=SessionStore(tmp_path / "sessions")) as client:
        statuses: list[int] = []

        async def send(method: str, path: str, body: Any = None) -> None:
            statuses.append((await client.ask(method, f"/api/sessions{path}", body)).status)

        async def at_once(method: str, path: str, body: Any = None) -> list[int]:
            statuses.clear()
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(send, method, path, body)
            return sorted(statuses)

        opening = {"session_id": "anna", "metadata": {"user": "anna"}}
        assert await at_once("POST", "", opening) == [201, 409, 409, 409, 409]
        assert await at_once("POST", "/anna/turns", {"prompt": "hang"}) == [202, 409, 409, 409, 409]
        assert await at_once("DELETE", "/anna") == [204, 404, 404, 404, 404]
        assert await at_once("POST", "", opening) == [201, 409, 409, 409, 409]
        assert len(client.factory.made) == 2


async def test_session_of_vanished_client_stays_usable(tmp_path):
    """A connection can break after the request has arrived; the session is there under the name that the client chose."""
    async with serving() as client:
        opening = client.begin("POST", "/api/sessions", {"session_id": "anna"})
        opening.leave()
        await opening.ended.wait()
        assert (await client.ask("POST", "/api/sessions", {"session_id": "anna"})).status == 409
        assert (await client.ask("DELETE", "/api/sessions/anna")).status == 204
