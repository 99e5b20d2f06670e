"""A server whose tools are sound and look as if they were not: ``python sound.py``; with a port as argument it answers over HTTP.

``sound.py PORT FILE [LIMIT]`` appends a line with the time and a header of each call to the file, and answers
every call after LIMIT with HTTP 429 once before it lets it through; with the LIMIT ``never`` it lets none through.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import InputRequiredResult, ToolAnnotations

server = MCPServer("sound")
READ = ToolAnnotations(read_only_hint=True)
IDEMPOTENT = ToolAnnotations(idempotent_hint=True)

stack = ["one", "two", "three", "four", "five"]
words: dict[str, str] = {}
running = [0]
lock = anyio.Lock()


@server.tool(annotations=READ)
async def read_log(name: str = "main") -> str:
    """Return the last line of a log, which is that of an error."""
    return "Error: [Errno 2] No such file or directory: '9'"


@server.tool(annotations=READ)
async def how_many_run() -> str:
    """Return how many calls run now."""
    running[0] += 1
    await anyio.sleep(0.01)
    found = running[0]
    running[0] -= 1
    return f"{found} run"


@server.tool(annotations=READ)
async def read_cached(word: str) -> str:
    """Repeat a word, from a file that is written once."""
    cache = Path("cache.json")
    if not cache.exists():
        cache.write_text("{}")
    return word


@server.tool(annotations=READ)
async def one_at_a_time(word: str) -> str:
    """Repeat a word, and refuse a second call meanwhile."""
    try:
        lock.acquire_nowait()
    except anyio.WouldBlock:
        raise ToolError("busy, try again") from None
    try:
        await anyio.sleep(0.01)
        return word
    finally:
        lock.release()


@server.tool(annotations=READ)
async def read_words() -> str:
    """Return all words."""
    return json.dumps(words)


@server.tool(annotations=READ)
async def read_stack() -> str:
    """Return what is on the stack; fails when there is nothing."""
    if not stack:
        raise ToolError("there is nothing on the stack")
    return json.dumps(stack)


@server.tool()
async def pop() -> str:
    """Take the top off the stack, after a moment."""
    await anyio.sleep(0.02)
    if not stack:
        raise ToolError("there is nothing on the stack")
    return stack.pop()


@server.tool(annotations=IDEMPOTENT)
async def define(word: str, meaning: str) -> str:
    """Define a word in one step, and write all to a file in one step."""
    await anyio.sleep(0.02)
    words[word] = meaning
    new = Path("new.json")
    new.write_text(json.dumps(words))
    new.rename("words.json")
    return "ok"


@server.tool()
async def finish(text: str) -> str:
    """Replace a text in two steps that a cancellation does not part."""
    with anyio.CancelScope(shield=True):
        Path("finished.txt").write_text("")
        await anyio.sleep(0.05)
        Path("finished.txt").write_text(text)
    return "ok"


@server.tool(annotations=READ)
async def ask() -> InputRequiredResult:
    """Ask the person, in the way of the newest protocol."""
    return InputRequiredResult(request_state="1")


class Limited:
    """Notes the calls, and answers some with HTTP 429."""

    def __init__(self, app: Any, file: Path, limit: str) -> None:
        self.app, self.file, self.limit = app, file, limit
        self.calls = 0
        self.refused = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        first = await receive()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if b'"tools/call"' in first.get("body", b""):
            is_over = self.limit != "" and (self.limit == "never" or self.calls >= int(self.limit))
            if is_over and (self.limit == "never" or not self.refused):
                self.refused = True
                # The client is asked to come back at once, so that the test does not wait.
                answer = [(b"retry-after", b"0"), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 429, "headers": answer})
                await send({"type": "http.response.body", "body": b""})
                self.note("429")
                return
            self.refused = False
            self.calls += 1
            self.note(headers.get("x-key", "no key"))
        sent = [first]

        async def replayed() -> Any:
            return sent.pop() if sent else await receive()

        await self.app(scope, replayed, send)

    def note(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{time.monotonic()} {what}\n")


def serve(port: int, file: Path, limit: str) -> None:
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    app = Limited(server.streamable_http_app(), file, limit)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if len(sys.argv) > 1:
    serve(int(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or [""])[0])
else:
    server.run("stdio")
