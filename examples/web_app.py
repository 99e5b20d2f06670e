"""An agent behind HTTP: turns are streamed as server-sent events, and stop when clients leave.

    pip install starlette uvicorn
    python examples/web_app.py            # on port 8000; another port as argument
    curl -N --data "list the files" http://127.0.0.1:8000/conversations/anna

Each request opens the conversation's session, runs one turn and closes it again. Between requests
nothing is in memory, because context-persistent has every message on disk. So the server may crash,
and several processes may serve the same conversations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from amplifier import AmplifierError, AmplifierSession, ModuleLoader, PlanError
from amplifier.models import TextDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.store import SessionLockedError

PLAN: dict[str, Any] = {
    "session": {
        "orchestrator": "loop-streaming",
        "context": {"module": "context-persistent", "config": {"path": "conversations"}},
        "deadlines": {"turn": 600},
    },
    # It answers by fixed rules, as slowly as a model. provider-anthropic is a language model.
    "providers": [{"module": "provider-offline", "config": {"stream_delay_ms": 250}}],
    "tools": [
        {"module": "tool-filesystem", "config": {"read_only": True}},
        {"module": "tool-search"},
    ],
}


def make_app(plan: dict[str, Any], modules: dict[str, Any] | None = None) -> Starlette:
    """Create the application. ``modules`` maps ids that aren't installed to mount functions."""
    running: set[anyio.Event] = set()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        # The server has cancelled the running turns and ends the process when this returns.
        with anyio.move_on_after(30):
            for over in list(running):
                await over.wait()

    def session_for(request: Request) -> AmplifierSession:
        return AmplifierSession(
            plan, ModuleLoader(modules=modules), session_id=request.path_params["conversation"]
        )

    async def ask(request: Request) -> Turn:
        return Turn(session_for(request), (await request.body()).decode(errors="replace"), running)

    async def read(request: Request) -> Response:
        async with session_for(request) as session:
            context = session.coordinator.get("context")
            return JSONResponse(await context.get_messages() if context else [])

    return Starlette(
        routes=[
            Route("/conversations/{conversation}", ask, methods=["POST"]),
            Route("/conversations/{conversation}", read, methods=["GET"]),
        ],
        exception_handlers={PlanError: bad_request, AmplifierError: not_available},
        lifespan=lifespan,
    )


class Turn(Response):
    """A response that streams one turn. The session lives exactly as long as the response."""

    def __init__(self, session: AmplifierSession, prompt: str, running: set[anyio.Event]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self.session, self.prompt, self.running = session, prompt, running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        over = anyio.Event()
        self.running.add(over)
        try:
            async with self.session:
                headers = self.raw_headers
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel_when_client_leaves, receive, group.cancel_scope)
                    await self.stream(send)
                    group.cancel_scope.cancel()
            # The session is closed, so the conversation is free for the next request.
            await send({"type": "http.response.body", "body": b""})
        finally:
            print(f"{self.session.session_id}: {self.session.status.status}", flush=True)
            self.running.discard(over)
            over.set()

    async def stream(self, send: Send) -> None:
        try:
            async with self.session.stream(self.prompt) as events:
                async for event in events:
                    if (shown := show(event)) is not None:
                        await send(sse(*shown))
            await send(sse("done", events.result))
        except AmplifierError as error:
            # The status line has been sent, so send the error as an event.
            await send(sse("error", f"{type(error).__name__}: {error}"))


async def cancel_when_client_leaves(receive: Receive, turn: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    turn.cancel()


def show(event: TurnEvent) -> tuple[str, Any] | None:
    """Return the kind and the data of an event that the browser gets, or None."""
    match event:
        case TextDelta():
            return "text", event.text
        case ToolStarted():
            return "tool", {"name": event.tool_name, "input": event.tool_input}
        case ToolFinished():
            return "result", {"name": event.tool_name, "success": event.success}
    return None


def sse(kind: str, data: Any) -> dict[str, Any]:
    """Return a server-sent event as an ASGI message."""
    text = f"event: {kind}\ndata: {json.dumps(data)}\n\n"
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def bad_request(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=400)


async def not_available(request: Request, error: Exception) -> Response:
    if isinstance(error, SessionLockedError):
        return JSONResponse(
            {"error": "this conversation is busy with another turn"}, status_code=409
        )
    return JSONResponse({"error": str(error)}, status_code=503)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    # Turns that still run three seconds after Ctrl-C or SIGTERM are cancelled.
    uvicorn.run(
        make_app(PLAN), host="127.0.0.1", port=port, access_log=False, timeout_graceful_shutdown=3
    )
