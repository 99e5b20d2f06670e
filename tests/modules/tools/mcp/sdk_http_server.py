"""A server on the official SDK over streamable HTTP: ``sdk_http_server.py PORT``; prints its port once it listens.

``/mcp`` is the server, ``/elsewhere`` redirects to another host, ``/denied`` wants credentials, ``/sse`` has only the older transport, ``/moved`` redirects to ``/mcp``.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

server = MCPServer("web")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def header(name: str, context: Context[Any, Any]) -> str:
    """Return a header of the request."""
    request = context.request_context.request
    return "none" if request is None else str(request.headers.get(name))


@server.tool()
def big(size: int) -> str:
    """Return a long text."""
    return "x" * size


@server.tool()
async def hang(note: str, context: Context[Any, Any]) -> str:
    """Wait until the call is cancelled."""
    await context.report_progress(1, 2, "begun")
    write(note, "begun\n")
    try:
        await anyio.sleep_forever()
    finally:
        write(note, "begun\ncancelled\n")
    return ""


@server.tool()
async def learn(name: str, context: Context[Any, Any]) -> str:
    """Offer another tool from now on."""
    server.add_tool(lambda: "learnt", name=name)
    await context.notify_tools_changed()
    return name


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


async def elsewhere(request: Request) -> Response:
    return RedirectResponse("http://localhost:9/mcp?state=hidden", status_code=307)


async def moved(request: Request) -> Response:
    return RedirectResponse("/mcp", status_code=307)


async def denied(request: Request) -> Response:
    return PlainTextResponse("no", status_code=401)


def main() -> None:
    app = server.streamable_http_app()
    for path, endpoint in (("/elsewhere", elsewhere), ("/moved", moved), ("/denied", denied)):
        app.add_route(path, endpoint, methods=["GET", "POST", "DELETE"])
    app.router.routes.extend(server.sse_app().routes)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[1])))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


main()
