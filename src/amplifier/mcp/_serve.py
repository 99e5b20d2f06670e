"""Serves an agent over standard streams or streamable HTTP, on either backend."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread

from amplifier.errors import MissingExtraError
from amplifier.kernel import AmplifierSession

if TYPE_CHECKING:
    from mcp.server import Server

_STOPPING = 2.0
"""Seconds that the HTTP server gives its connections when it is stopped."""


async def serve(
    session_factory: Callable[[], AmplifierSession],
    *,
    transport: Literal["stdio", "http"] = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "amplifier",
    max_sessions: int = 100,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve an agent until the client leaves (standard streams) or until cancelled (HTTP).

    The server has one tool, ``run``, which runs a turn with progress. A client that cancels the call stops the turn. Each client has a
    session of its own; questions for permission go to the client as elicitations, and are denied if it knows none. The
    conversations of a client are resources.

    Args:
        session_factory: Makes a session that is not opened yet, for each client. It gets an approval system that asks the
            client, unless it has one already.
        transport: How clients reach the server.
        host: For HTTP: the address to listen on. Whoever reaches it can use the agent.
        port: For HTTP: the port to listen on; 0 for a free one.
        name: The name that clients see.
        max_sessions: Sessions that are kept open; the one that was idle longest makes room.
        on_listening: For HTTP: called with the server's URL once it listens.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
        OSError: The address cannot be listened on.
    """
    make_server = await anyio.to_thread.run_sync(_import_parts)
    opened: AbstractAsyncContextManager[Server[Any]] = make_server(session_factory, name, max_sessions, transport)
    async with opened as server:
        if transport == "stdio":
            await _serve_stdio(server)
        else:
            await _serve_http(server, host, port, on_listening)


def _import_parts() -> Callable[..., AbstractAsyncContextManager[Server[Any]]]:
    """Import the SDK, which takes about a second; blocks."""
    try:
        from ._agent_server import open_agent_server  # noqa: PLC0415 - it imports the SDK, an extra
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("amplifier"):
            raise
        raise MissingExtraError("serving an agent over MCP", extra="mcp", missing=error.name) from error
    return open_agent_server


async def _serve_stdio(server: Server[Any]) -> None:
    from ._stdio import open_standard_streams  # noqa: PLC0415 - it imports the SDK, an extra

    async with open_standard_streams() as (received, to_send):
        await server.run(received, to_send, server.create_initialization_options())


async def _serve_http(server: Server[Any], host: str, port: int, on_listening: Callable[[str], None] | None) -> None:
    from hypercorn.config import Config  # noqa: PLC0415 - an extra

    app = server.streamable_http_app(host=host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    if on_listening is not None:
        shown = f"[{host}]" if ":" in host else host
        on_listening(f"http://{shown}:{listener.getsockname()[1]}/mcp")
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]  # hypercorn closes it
    config.graceful_timeout = _STOPPING
    config.errorlog = None
    stop = anyio.Event()

    async def listen() -> None:
        # Stopped by its trigger, not by cancellation, which it does not unwind from; bounded by its graceful_timeout.
        with anyio.CancelScope(shield=True):
            await _hypercorn()(app, config, shutdown_trigger=stop.wait)

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()


def _hypercorn() -> Any:
    """The ASGI server for the running backend."""
    if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        from hypercorn.trio import serve as serve_on_trio  # noqa: PLC0415 - imports trio, which need not be installed

        return serve_on_trio
    from hypercorn.asyncio import serve as serve_on_asyncio  # noqa: PLC0415 - of the running backend alone

    return serve_on_asyncio
