"""The ASGI application, and the servers that run one: uvicorn on asyncio, hypercorn on trio."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, final

import anyio
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from amplifier.contracts.cancellation import running_asyncio_loop
from amplifier.shared_sessions import LiveSessions
from amplifier.store import SessionIndex

from ..access import LOOPBACK_HOSTS, check_token
from ..sessions import SessionCheck, SessionFactory, require_provider
from ._ag_ui import ag_ui_routes
from ._agents import Agents
from ._openai import openai_routes
from ._openai_responses import responses_routes
from ._session_api import SessionApi
from .pages import FREE_PATHS, TRACE_PAGE, file_routes, trace_routes
from .requests import Limits, guarded, handlers


@final
class Application:
    """An ASGI application of `application`.

    The server, or the application around it, has to run its lifespan.

    Attributes:
        limits: Its limits.
    """

    def __init__(self, app: ASGIApp, agents: Agents) -> None:
        self._app = app
        self._agents = agents
        self.limits: Limits = agents.limits

    def __repr__(self) -> str:
        return f"<Application: {self._agents!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        with _callers_trace(scope):
            await self._app(scope, receive, send)

    async def shut_down(self) -> None:
        """Refuse new turns, let running turns end, and close all sessions, within the time limit.

        Call this when the server is being stopped, before it closes its connections.
        `describe_running` describes the turns that it waits for.
        """
        with anyio.move_on_after(self.limits.shutdown_seconds):
            await self._agents.end_turns()
            await self._agents.live.close_all()

    def describe_running(self) -> str:
        """Describe the turns that the shutdown waits for. Without any, return an empty text."""
        return self._agents.describe_running()


def application(
    make_session: SessionFactory,
    *,
    token: str | None,
    limits: Limits | None = None,
    hosts: Collection[str] = LOOPBACK_HOSTS,
    origins: Collection[str] = (),
    storage: SessionIndex | None = None,
    check: SessionCheck = require_provider,
    reports: Callable[[], list[dict[str, Any]]] | None = None,
    name: str = "amplifier",
) -> Application:
    """Return an ASGI application that serves an agent, on asyncio and trio, under any server.

    The application offers OpenAI's chat completions and responses, AG-UI, a session API and a chat
    page.

    Args:
        make_session: Makes a session that isn't opened yet.
        token: The token that every request carries as ``Authorization: Bearer``, except for the
            page's files. None if something else authenticates clients.
        limits: Sizes, numbers and times.
        hosts: Names under which clients may reach the server. ``*`` allows any name.
        origins: Other origins with pages that may use the server, such as
            ``https://chat.example.org``.
        storage: The index of stored conversations, to resume and delete them.
        check: Raises if a session that has just been opened can't be used. By default, a session
            without a provider is refused.
        reports: Reads the conformance reports that the page lists, as dicts with ``module``,
            ``verdict``, ``checked`` and ``text``.
        name: The agent's name. Clients choose it as the model.

    Raises:
        ValueError: The token is too short.
    """
    check_token(token)
    limits = limits or Limits()
    live: LiveSessions[Any] = LiveSessions(most=limits.sessions, idle_seconds=limits.idle_seconds)
    agents = Agents(make=make_session, check=check, limits=limits, name=name, live=live)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with live.running():
            yield
            # The turns have to unwind even if the server still waits for their requests.
            await agents.end_turns()

    routes = [
        *openai_routes(agents),
        *responses_routes(agents),
        *ag_ui_routes(agents),
        *SessionApi(agents, storage, reports).routes(),
        *file_routes(),
        *([] if storage is None else trace_routes(storage)),
    ]
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    checked = guarded(
        app, token=token, hosts=hosts, origins=origins, free_paths=(*FREE_PATHS, TRACE_PAGE)
    )
    return Application(checked, agents)


@contextmanager
def _callers_trace(scope: Scope) -> Iterator[None]:
    """Continue the caller's trace inside the block.

    If the process uses OpenTelemetry, turns are below the span that ``traceparent`` names.
    """
    if scope["type"] != "http" or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context, propagate  # noqa: PLC0415 — belongs to an extra

    token = context.attach(
        propagate.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
    )
    try:
        yield
    finally:
        context.detach(token)


# ── servers ──

_HEAD_SECONDS = 10.0
"""Seconds for the head of a request, counted from the connection or the last response."""


async def run_server(app: Application, listening: socket.socket, stop: anyio.Event) -> None:
    """Serve until ``stop`` is set. Then let turns end, and close the connections and the sessions.

    Args:
        app: The application.
        listening: A bound socket.
        stop: Set to end the server.
    """
    await run_asgi_server(app, listening, stop, app.shut_down)


async def run_asgi_server(
    app: ASGIApp,
    listening: socket.socket,
    stop: anyio.Event,
    shut_down: Callable[[], Awaitable[None]],
) -> None:
    """Serve any ASGI application until ``stop`` is set.

    Then run ``shut_down`` and close the connections.
    """
    closing = anyio.Event()

    async def close() -> None:
        await stop.wait()
        await shut_down()
        closing.set()

    async with anyio.create_task_group() as group:
        group.start_soon(close)
        if running_asyncio_loop() is None:
            await _run_hypercorn(app, listening, closing)
        else:
            await _run_uvicorn(app, listening, closing)
        group.cancel_scope.cancel()


async def _run_uvicorn(app: ASGIApp, listening: socket.socket, closing: anyio.Event) -> None:
    import uvicorn  # noqa: PLC0415 — only on asyncio

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # The command handles signals on both backends.
            yield

    config = uvicorn.Config(
        app,
        http=_patient(_http_protocol()),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=1,
        server_header=False,
        ws="none",
    )
    server = Server(config)

    async def watch() -> None:
        await closing.wait()
        server.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await server.serve(sockets=[listening])
        group.cancel_scope.cancel()


def _patient(protocol: Any) -> Any:
    class PatientProtocol(protocol):  # type: ignore[misc]
        """Closes a connection on which no complete head of a request arrives.

        Uvicorn limits the wait only between requests.
        """

        # This is a handle of the event loop.
        _giving_up: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head(None)

        def on_response_complete(self) -> None:
            answered = self.cycle
            super().on_response_complete()
            self._expect_head(answered)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._giving_up is not None:
                self._giving_up.cancel()

        def _expect_head(self, answered: object) -> None:
            if self._giving_up is not None:
                self._giving_up.cancel()
            self._giving_up = self.loop.call_later(_HEAD_SECONDS, self._give_up, answered)

        def _give_up(self, answered: object) -> None:
            # No other request has started, and no pipelined one is being answered.
            if self.cycle is answered and (answered is None or answered.response_complete):
                self.transport.close()

    return PatientProtocol


_HEAD_BYTES = 64 * 1024
"""Maximum size of the head of a request."""


def _http_protocol() -> Any:
    """Return uvicorn's protocol for httptools, which comes with the extra, or else for h11.

    httptools accepts heads of any size and more than one host, both of which h11 refuses.
    """
    if find_spec("httptools") is None:
        from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

        return H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415

    class StrictProtocol(HttpToolsProtocol):
        # This is the size of the head that is being read.
        _size = 0
        _is_in_head = False

        def data_received(self, data: bytes) -> None:
            before, was_in_head = self._size, self._is_in_head
            super().data_received(data)
            # An unfinished header hasn't been passed on yet, so its bytes are counted here.
            if (
                was_in_head
                and self._is_in_head
                and self._size == before
                and not self.transport.is_closing()
            ):
                self._size += len(data)
                if self._size > _HEAD_BYTES:
                    self.send_400_response("The head of the request is too large.")

        def on_message_begin(self) -> None:
            self._size, self._is_in_head = 0, True
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(name, value)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            if sum(name == b"host" for name, _ in self.headers) > 1:
                raise ValueError("a request has one host")
            super().on_headers_complete()

        def _count(self, *parts: bytes) -> None:
            self._size += sum(map(len, parts))
            if self._size > _HEAD_BYTES:
                raise ValueError("the head of the request is too large")

    return StrictProtocol


async def _run_hypercorn(app: ASGIApp, listening: socket.socket, closing: anyio.Event) -> None:
    import hypercorn.trio  # noqa: PLC0415 — only on trio
    from hypercorn.config import Config  # noqa: PLC0415

    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.accesslog = None
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.graceful_timeout = 1.0
    config.keep_alive_timeout = _HEAD_SECONDS
    config.startup_timeout = config.shutdown_timeout = 60.0
    await hypercorn.trio.serve(app, config, shutdown_trigger=closing.wait)  # type: ignore[arg-type]
