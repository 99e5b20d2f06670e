"""Runs the application on a socket: uvicorn on asyncio, hypercorn on trio; both end when an event is set."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from amplifier.contracts._containment import running_asyncio_loop

__all__ = ["Served", "run_asgi_server", "run_server"]


class Served(Protocol):
    """An ASGI application that can be told to end what it is doing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""

    async def shut_down(self) -> None:
        """End what must not be cut off; called before the connections are closed."""


async def run_server(app: Served, listening: socket.socket, stop: anyio.Event) -> None:
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

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the command handles signals, on both backends alike

    config = uvicorn.Config(
        app,
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
    config.startup_timeout = config.shutdown_timeout = 60.0
    await hypercorn.trio.serve(app, config, shutdown_trigger=closing.wait)  # type: ignore[arg-type]
