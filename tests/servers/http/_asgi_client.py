"""A client in the same process as the application: it can leave, read slowly, and see everything that is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier import AmplifierSession, ModuleLoader
from amplifier.servers import SessionRequest
from amplifier.servers.http import Application, Limits, application
from tests.cli._scripted_agent import mount_hook, mount_provider, mount_tools
from tests.servers.http._openai_types import check_openai

TOKEN = "a-token-for-tests"

PLAN: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": ["provider-scripted"],
    "tools": ["tool-scripted"],
    "hooks": ["hooks-ask"],
}


@attrs.define
class Factory:
    """Makes sessions of the scripted agent and remembers them."""

    plan: dict[str, Any] = attrs.field(factory=lambda: PLAN)
    made: list[AmplifierSession] = attrs.field(factory=list)
    requests: list[SessionRequest] = attrs.field(factory=list)
    more: dict[str, Any] = attrs.field(factory=dict)

    def __call__(self, request: SessionRequest) -> AmplifierSession:
        modules = {
            "provider-scripted": mount_provider,
            "tool-scripted": mount_tools,
            "hooks-ask": mount_hook,
        } | self.more
        self.requests.append(request)
        self.made.append(
            AmplifierSession(
                self.plan,
                ModuleLoader(modules=modules),
                session_id=request.session_id,
                approval_system=request.approvals,
            )
        )
        return self.made[-1]

    async def until_tool_runs(self) -> None:
        """Wait for a tool call in the session that was made last."""
        started = anyio.Event()

        async def note(event: str, data: dict[str, Any]) -> None:
            started.set()

        while not self.made:
            await anyio.lowlevel.checkpoint()
        self.made[-1].coordinator.hooks.register("tool:pre", note, priority=1000, name="test")
        await started.wait()

    def statuses(self) -> list[str]:
        return [session.status.status for session in self.made]

    def open(self) -> int:
        return sum(session.initialized for session in self.made)


@attrs.define
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found: str = self.json()["error"]["message"]
        return found


class Exchange:
    """One request that is under way."""

    def __init__(self, body: bytes | None, path: str = "") -> None:
        self._path = path
        self.sent, self._messages = anyio.create_memory_object_stream[Any](1000)
        self._left = anyio.Event()
        self.is_taking = anyio.Event()
        self.is_taking.set()
        self._body = body
        self.ended = anyio.Event()
        self.buffer = b""
        self._is_over = False

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.is_taking.wait()
        await self.sent.send(message)

    def leave(self) -> None:
        self._left.set()

    async def start(self) -> Answer:
        """The head of the response."""
        message = await self._messages.receive()
        headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        return Answer(message["status"], headers, b"")

    async def rest(self) -> bytes:
        """The whole body."""
        body = b""
        while True:
            message = await self._messages.receive()
            body += message["body"]
            if not message.get("more_body"):
                return body

    def events(self) -> Exchange:
        """The JSON of server-sent events, by ``async for``; comments are skipped."""
        return self

    def __aiter__(self) -> Exchange:
        return self

    async def __anext__(self) -> Any:
        while True:
            while b"\n\n" in self.buffer:
                part, _, self.buffer = self.buffer.partition(b"\n\n")
                data = next(
                    (line[6:] for line in part.split(b"\n") if line.startswith(b"data: ")), None
                )
                if data is not None:
                    event = data.decode() if data == b"[DONE]" else json.loads(data)
                    check_openai(self._path, event)
                    return event
            if self._is_over:
                raise StopAsyncIteration
            message = await self._messages.receive()
            self.buffer += message["body"]
            self._is_over = not message.get("more_body")

    async def until(self, kind: str) -> Any:
        """The next event of a type."""
        async for event in self.events():
            if event["type"] == kind:
                return event
        raise AssertionError(f"no event of type {kind}")

    def close(self) -> None:
        self.sent.close()
        self._messages.close()


class Client:
    """Sends requests to an application."""

    def __init__(self, app: Application, factory: Factory, group: Any) -> None:
        self.app = app
        self.factory = factory
        self._group = group
        self.exchanges: list[Exchange] = []

    def begin(self, method: str, path: str, body: Any = None, **headers: str | None) -> Exchange:
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        given: dict[str, str | None] = {
            "host": "127.0.0.1:8642",
            "authorization": f"Bearer {TOKEN}",
            "content-type": "application/json",
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.encode(), value.encode())
                for name, value in given.items()
                if value is not None
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8642),
        }
        exchange = Exchange(data, path)
        self.exchanges.append(exchange)

        async def run() -> None:
            await self.app(scope, exchange.receive, exchange.send)
            exchange.ended.set()

        self._group.start_soon(run)
        return exchange

    async def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        exchange = self.begin(method, path, body, **headers)
        answer = await exchange.start()
        answer.body = await exchange.rest()
        await exchange.ended.wait()
        if answer.headers.get("content-type", "").startswith("application/json"):
            check_openai(path, answer.json())
        return answer

    async def open_session(self) -> str:
        answer = await self.ask("POST", "/api/sessions", {})
        assert answer.status == 201, answer.body
        session_id: str = answer.json()["session_id"]
        return session_id

    def chat(self, text: str, **more: Any) -> Exchange:
        body = {"messages": [{"role": "user", "content": text}], "stream": True, **more}
        return self.begin("POST", "/v1/chat/completions", body)


@asynccontextmanager
async def serving(factory: Factory | None = None, **options: Any) -> AsyncIterator[Client]:
    """An application whose lifespan runs; at the end it is stopped, and no session may be open."""
    factory = factory or Factory()
    options = {"token": TOKEN, "limits": Limits(), **options}
    app = application(factory, **options)
    to_app, at_app = anyio.create_memory_object_stream[Any](10)
    from_app, at_test = anyio.create_memory_object_stream[Any](10)
    async with anyio.create_task_group() as group:
        with to_app, at_app, from_app, at_test:

            async def lifespan() -> None:
                await app(
                    {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}},
                    at_app.receive,
                    from_app.send,
                )

            group.start_soon(lifespan)
            await to_app.send({"type": "lifespan.startup"})
            assert (await at_test.receive())["type"] == "lifespan.startup.complete"
            client = Client(app, factory, group)
            try:
                with anyio.fail_after(3600 * 24):
                    yield client
            finally:
                for exchange in client.exchanges:
                    exchange.leave()
                try:
                    await to_app.send({"type": "lifespan.shutdown"})
                    assert (await at_test.receive())["type"] == "lifespan.shutdown.complete"
                finally:
                    for exchange in client.exchanges:
                        exchange.close()
    assert factory.open() == 0
    assert "0 sessions, 0 turns" in repr(app)
