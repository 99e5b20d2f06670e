"""The server behind streamable HTTP: every request is checked as `amplifier serve` checks it."""

from __future__ import annotations

import socket
from collections.abc import Collection

import anyio
import anyio.lowlevel
import hypercorn  # noqa: F401 - so that a missing extra is noticed before anything is served
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from .._access import LOOPBACK_HOSTS
from ..http._guard import guarded
from ..http._servers import run_asgi_server

__all__ = ["UNGUARDED", "serve_http"]

UNGUARDED = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the guard knows the server's names


async def serve_http(
    app: ASGIApp,
    listening: socket.socket,
    *,
    token: str | None,
    hosts: Collection[str] | None,
    origins: Collection[str],
) -> None:
    """Serve until cancelled.

    Args:
        app: What answers.
        listening: A socket that is bound.
        token: What every request has to carry; None for none.
        hosts: Names under which the server is reached; None for those of this machine.
        origins: Other origins whose pages may use the server.
    """
    app = guarded(app, token=token, hosts=LOOPBACK_HOSTS if hosts is None else hosts, origins=origins)
    stop = anyio.Event()

    async def listen() -> None:
        # Stopped by its event, not by cancellation, which ASGI servers do not unwind from; bounded by their own limits.
        with anyio.CancelScope(shield=True):
            # Nothing has to be shut down before: a request that ends stops its turn, and then the sessions are closed.
            await run_asgi_server(app, listening, stop, anyio.lowlevel.checkpoint)

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()
