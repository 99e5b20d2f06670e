"""Many clients at once, some of which leave early; prints what the server still has afterwards.

    python -m tests.serve._load BACKEND CLIENTS

Server and clients are tasks of one process, with sockets between them, so that every task and descriptor that is left can be counted.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from typing import Any

import anyio
from anyio.abc import SocketStream

from amplifier.serve import Limits, application, run_server
from tests.serve._asgi_client import TOKEN, Factory

PROMPTS = ("say one two three", "hang")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def request(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


async def receive_until(stream: SocketStream, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        received += await stream.receive()
    return received


async def client(number: int, port: int, counts: dict[str, int]) -> None:
    leaves = number % 10 == 0
    is_ag_ui = number % 3 == 0
    prompt = {"id": "1", "role": "user", "content": PROMPTS[leaves]}
    body = {"messages": [prompt], "stream": True, "threadId": "a", "runId": "b"}
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(request("/ag-ui" if is_ag_ui else "/v1/chat/completions", body))
        if leaves:
            await receive_until(stream, b"hanging")
            counts["left"] += 1
        else:
            await receive_until(stream, b"RUN_FINISHED" if is_ag_ui else b"[DONE]")
            counts["answered"] += 1


async def main(clients: int) -> dict[str, Any]:
    before = len(anyio.get_running_tasks())
    factory = Factory()
    app = application(factory, token=TOKEN, limits=Limits(turns=clients))
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listening.getsockname()[1]
    counts = {"answered": 0, "left": 0}
    stop = anyio.Event()
    async with anyio.create_task_group() as serving:
        serving.start_soon(run_server, app, listening, stop)
        async with anyio.create_task_group() as group:
            for number in range(clients):
                group.start_soon(client, number, port, counts)
        with anyio.fail_after(300):
            await app._turns.wait_idle()
        assert factory.open() == 0
        stop.set()
    tasks = len(anyio.get_running_tasks()) - before
    statuses = factory.statuses()
    return {
        **counts,
        "completed": statuses.count("completed"),
        "cancelled": statuses.count("cancelled"),
        "tasks": tasks,
        "application": repr(app),
    }


if __name__ == "__main__":
    backend, clients = sys.argv[1], int(sys.argv[2])
    anyio.run(main, 2, backend=backend)  # imports everything, so that the count below is about the clients
    gc.collect()
    before = descriptors()
    found = anyio.run(main, clients, backend=backend)
    gc.collect()
    print(json.dumps({**found, "descriptors": descriptors() - before}))
