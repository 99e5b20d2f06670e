"""Serve an agent over standard streams or streamable HTTP, on either backend."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread

from amplifier.errors import MissingExtraError
from amplifier.kernel import AmplifierSession

from ..access import LOOPBACK_HOSTS, address_of, check_token, listen_on

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.auth.provider import TokenVerifier
    from mcp.server.auth.settings import AuthSettings
    from starlette.types import ASGIApp


async def serve(
    session_factory: Callable[[], AmplifierSession],
    *,
    transport: Literal["stdio", "http"] = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    listening: socket.socket | None = None,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    name: str = "amplifier",
    max_sessions: int = 100,
    prompts: Mapping[str, str] | None = None,
    auth: AuthSettings | None = None,
    token_verifier: TokenVerifier | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve an agent until the client disconnects (stdio) or until cancelled (HTTP).

    The server has one tool, ``run``, which runs a turn with progress. A client that cancels the
    call stops the turn. Each client has its own session, and its conversations are resources.
    Questions for permission go to the client as elicitations. They are denied if the client doesn't
    support elicitation.

    Args:
        session_factory: Makes a session for each client, not opened yet. The session gets an
            approval system that asks the client, unless it already has one.
        transport: The transport of the messages.
        host: For HTTP: the address to listen on.
        port: For HTTP: the port to listen on, or 0 for a free one.
        listening: For HTTP: a socket that is bound, instead of host and port.
        token: For HTTP: the token that every request carries as ``Authorization: Bearer``. Pass an
            empty text if something else authenticates clients.
        hosts: For HTTP: names under which clients may reach the server. ``*`` allows any, and None
            only those of this machine.
        origins: For HTTP: other origins with pages that may use the server, such as
            ``https://chat.example.org``.
        name: The name that clients see.
        max_sessions: The number of sessions that are kept open. The session that has been idle
            longest makes room.
        prompts: Texts that clients offer their users as prompts, by name. A client's user fills in
            ``$ARGUMENTS``.
        auth: For HTTP: the authorization server that issues the tokens of requests, in place of
            ``token``. Clients find it by the metadata of this resource (RFC 9728). Sessions
            belong to the client and user of a token.
        token_verifier: For HTTP with ``auth``: checks such a token.
        on_listening: For HTTP: called with the server's URL once it listens.

    Raises:
        MissingExtraError: The MCP SDK isn't installed.
        OSError: Listening on the address is impossible.
        ValueError: HTTP has no token, or one that is too short, or ``auth`` has no verifier.
    """
    if (auth is None) != (token_verifier is None) or (auth is not None and token):
        raise ValueError("auth: expected together with token_verifier, and without token")
    if transport == "http" and token is None and auth is None:
        raise ValueError(
            "token: HTTP needs one; pass an empty text if something else checks who is asking"
        )
    await anyio.to_thread.run_sync(import_sdk)
    from ._agent_server import open_agent_server  # noqa: PLC0415 - it imports the SDK, an extra

    opened = open_agent_server(session_factory, name, max_sessions, transport, prompts or {})
    if transport == "stdio":
        async with opened as server:
            await _serve_standard_streams(server)
        return
    from ..http.requests import guarded  # noqa: PLC0415 - of the extra ``serve``

    check_token(token or None)
    with listening or listen_on(host, port) as bound:
        async with opened as server:
            if on_listening is not None:
                on_listening(f"{address_of(bound, host)}/mcp")
            app = guarded(
                _http_app(server, auth, token_verifier),
                token=token or None,
                hosts=LOOPBACK_HOSTS if hosts is None else hosts,
                origins=origins,
            )
            await _serve_http(app, bound)


async def _serve_standard_streams(server: Server[Any]) -> None:
    from ._agent_server import open_standard_streams  # noqa: PLC0415 - it imports the SDK

    async with open_standard_streams() as (received, to_send):
        await server.run(received, to_send, server.create_initialization_options())


def _http_app(
    server: Server[Any], auth: AuthSettings | None, token_verifier: TokenVerifier | None
) -> ASGIApp:
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415 - an extra

    # The guard around the application checks the names.
    unguarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(
        transport_security=unguarded, auth=auth, token_verifier=token_verifier
    )


async def _serve_http(app: ASGIApp, bound: socket.socket) -> None:
    """Serve over HTTP until cancelled."""
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, app, bound, stop)
        try:
            await anyio.sleep_forever()
        finally:
            stop.set()


async def _listen(app: ASGIApp, bound: socket.socket, stop: anyio.Event) -> None:
    from ..http.application import run_asgi_server  # noqa: PLC0415 - of the extra ``serve``

    # The server is stopped with its event, because ASGI servers do not unwind when they are
    # cancelled. Their own limits bound the time that this takes.
    with anyio.CancelScope(shield=True):
        # Nothing has to be shut down first. A request that ends stops its turn, and then the
        # sessions are closed.
        await run_asgi_server(app, bound, stop, anyio.lowlevel.checkpoint)


def import_sdk() -> None:
    """Import the modules that need the SDK. This blocks for about a second.

    Raises:
        MissingExtraError: The MCP SDK isn't installed.
    """
    try:
        # A missing package is reported before anything is served.
        import hypercorn  # noqa: F401, PLC0415

        from . import _agent_server  # noqa: F401, PLC0415 - it imports the SDK, an extra
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("amplifier"):
            raise
        raise MissingExtraError(
            "serving an agent over MCP", extra="mcp", missing=error.name
        ) from error
