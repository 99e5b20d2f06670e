"""Runs the application on a socket: uvicorn on asyncio, hypercorn on trio; both end when an event is set."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from starlette.types import ASGIApp

from amplifier.contracts._cancellation import running_asyncio_loop

if TYPE_CHECKING:
    from ._application import Application

_HEAD_SECONDS = 10.0
"""For the head of a request, from the opening of the connection or the end of the response before it."""


async def run_server(app: Application, listening: socket.socket, stop: anyio.Event) -> None:
    """Serve until ``stop`` is set; then let turns end within their time, close the connections and the sessions.

    Args:
        app: The application.
        listening: A socket that is bound.
        stop: Ends the server.
    """
    await run_asgi_server(app, listening, stop, app.shut_down)


async def run_asgi_server(
    app: ASGIApp, listening: socket.socket, stop: anyio.Event, shut_down: Callable[[], Awaitable[None]]
) -> None:
    """Serve any ASGI application until ``stop`` is set; then run ``shut_down`` and close the connections."""
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
    import uvicorn  # noqa: PLC0415  # only on asyncio
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    class PatientProtocol(H11Protocol):
        """Closes a connection on which no whole head of a request arrives; uvicorn stops waiting between requests only."""

        _giving_up: Any = None  # a handle of the event loop

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
            if self.cycle is answered:  # no other request has begun
                self.transport.close()

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the command handles signals, on both backends alike

    config = uvicorn.Config(
        app,
        http=PatientProtocol,
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


async def _run_hypercorn(app: ASGIApp, listening: socket.socket, closing: anyio.Event) -> None:
    import hypercorn.trio  # noqa: PLC0415  # only on trio
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
