"""Servers that stream a scripted answer: ``python -m benchmarks.stream_servers KIND BACKEND PORT``.

``starlette`` writes the pieces itself, ``serve`` is the application of `amplifier serve`, ``embedded`` is `agent` and
`stream_text` in a route, and the others are their libraries in a route. ``POST /cpu`` answers with the processor time of the process.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import amplifier
from amplifier.servers.http import Limits, application
from amplifier.servers.http.application import run_asgi_server
from benchmarks.streams import PLAN, loader, mount

Answer = Callable[[int, float], AsyncIterator[str]]


def route(respond: Callable[[int, float], Response]) -> ASGIApp:
    """An application with one route."""

    async def chat(request: Request) -> Response:
        count, pause = json.loads(await request.body())["messages"][-1]["content"].split()
        return respond(int(count), float(pause))

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def event(text: str) -> bytes:
    """A piece as an OpenAI server writes it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {
        "id": "x",
        "created": 1,
        "model": "m",
        "object": "chat.completion.chunk",
        "choices": [choice],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


LAST = b"data: [DONE]\n\n"


def streaming(answer: Answer) -> ASGIApp:
    """An application that writes the pieces of an answer as Starlette's documentation shows it."""

    def respond(count: int, pause: float) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            async for text in answer(count, pause):
                yield event(text)
            yield LAST

        return StreamingResponse(lines(), media_type="text/event-stream")

    return route(respond)


def starlette() -> ASGIApp:
    async def answer(count: int, pause: float) -> AsyncIterator[str]:
        for _ in range(count):
            await anyio.sleep(pause)
            yield "piece "

    return streaming(answer)


class Turn(Response):
    """One turn as docs/how-to/serve-an-agent.md shows it, with events in place of text."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.write, send, group.cancel_scope)
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

    async def write(self, send: Send, request: anyio.CancelScope) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        session = amplifier.agent({"module": mount})
        async with session, session.stream_text(self.prompt) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": event(piece), "more_body": True})
        await send({"type": "http.response.body", "body": LAST})
        request.cancel()


def embedded() -> ASGIApp:
    return route(lambda count, pause: Turn(f"{count} {pause}"))


def serve() -> ASGIApp:
    found = loader()

    def make(request: Any) -> amplifier.AmplifierSession:
        return amplifier.AmplifierSession(PLAN, loader=found, approval_system=request.approvals)

    return application(make, token=None, limits=Limits(turns=1000, sessions=1000))


def openai_agents() -> ASGIApp:
    from benchmarks.rivals.openai_agents_turn import streamed_text  # noqa: PLC0415 — a process has one of them

    return streaming(streamed_text)


def pydantic_ai() -> ASGIApp:
    from benchmarks.rivals.pydantic_ai_turn import streamed_text  # noqa: PLC0415 — a process has one of them

    return streaming(streamed_text)


def with_cpu(app: ASGIApp) -> ASGIApp:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/cpu":
            await app(scope, receive, send)
            return
        body = f"cpu={time.process_time():9.4f}".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return handle


async def main(kind: str, port: int) -> None:
    app = with_cpu(globals()[kind]())
    with socket.create_server(("127.0.0.1", port), backlog=1000) as listening:
        await run_asgi_server(app, listening, anyio.Event(), anyio.lowlevel.checkpoint)


if __name__ == "__main__":
    kind, backend, port = sys.argv[1:]
    options = {"use_uvloop": True} if backend == "asyncio" else {}
    anyio.run(main, kind, int(port), backend=backend, backend_options=options)
