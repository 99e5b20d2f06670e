"""Opens all servers side by side, mounts their tools, and shares the servers with child sessions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, ModuleLoadError

from ..._shared.processes import can_supervise
from ._options import MODULE, ServerOptions, read_mcp_options

if TYPE_CHECKING:
    from ._connection import Connection

logger = logging.getLogger("amplifier.modules.tool-mcp")

SERVERS = "mcp.servers"
"""The capability with the connections that child sessions share."""
STATUS = "mcp.status"
"""The capability with a function that describes every server."""
_EVENTS = (
    "mcp:server_connected",
    "mcp:server_failed",
    "mcp:tools_changed",
    "mcp:progress",
    "mcp:log",
    "mcp:sampling",
    "mcp:elicitation",
)


@asynccontextmanager
async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> AsyncIterator[None]:
    """Open the servers of the plan and mount their tools; a server that fails is named, and the others work.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        MissingExtraError: The MCP SDK is not installed.
        ModuleLoadError: A server with ``required: true`` failed.
    """
    options = await anyio.to_thread.run_sync(read_mcp_options, config)
    if not options.servers:
        logger.info("%s: the plan names no servers", MODULE)
        yield
        return
    connecting, mounting = await anyio.to_thread.run_sync(_import_parts)
    await anyio.to_thread.run_sync(can_supervise)  # it starts a program once, and keeps the answer
    shared: dict[str, Connection] = (
        (coordinator.get_capability(SERVERS) or {}) if options.share else {}
    )
    own = {
        server.name: connecting.Connection(server, coordinator, options.max_message_bytes)
        for server in options.servers
        if not _is_shared(server, shared)
    }
    connections = {
        server.name: own.get(server.name) or shared[server.name] for server in options.servers
    }
    tools = mounting.ToolMounting(coordinator, options)
    async with anyio.create_task_group() as group:
        for connection in own.values():
            group.start_soon(connection.run, name=f"MCP server {connection.options.name}")
        try:
            async with anyio.create_task_group() as opening:
                for connection in own.values():
                    opening.start_soon(connection.open)
            failures = [
                each.failure
                for each in own.values()
                if each.options.is_required and each.failure is not None
            ]
            if failures:
                problems = "; ".join(map(str, failures))
                raise ModuleLoadError(f"a required MCP server failed: {problems}", module_id=MODULE)

            def status() -> list[dict[str, Any]]:
                return [
                    _describe(connection, tools.names(name))
                    for name, connection in connections.items()
                ]

            with ExitStack() as listening:
                for connection in connections.values():
                    await tools.update(connection)
                    connection.listeners.append(tools.update)
                    listening.callback(connection.listeners.remove, tools.update)
                if options.share and not shared:
                    coordinator.register_capability(SERVERS, dict(own))
                coordinator.register_capability(STATUS, status)
                coordinator.register_contributor(
                    "observability.events", MODULE, lambda: list(_EVENTS)
                )
                coordinator.register_contributor(
                    "instructions", MODULE, partial(_instructions, connections)
                )
                yield
        finally:
            for connection in own.values():
                connection.close()


async def on_session_ready(coordinator: Coordinator) -> None:
    """Emit how the servers were opened, now that every hook listens."""
    status = coordinator.get_capability(STATUS)
    for server in status() if callable(status) else ():
        if server["error"] is not None:
            details = {
                "server": server["server"],
                "error": server["error"],
                "error_type": server["error_type"],
            }
            await coordinator.hooks.emit("mcp:server_failed", details)
        else:
            about = {
                key: server[key] for key in ("server", "seconds", "starts", "protocol", "tools")
            }
            await coordinator.hooks.emit("mcp:server_connected", about)


def _instructions(connections: dict[str, Connection]) -> str | None:
    """How to use the servers, in their own words, for the system prompt."""
    given = {
        name: connection.offer.instructions
        for name, connection in connections.items()
        if connection.offer
    }
    parts = [
        f"How to use the tools of the MCP server {name}, as it says:\n{text}"
        for name, text in given.items()
        if text
    ]
    return "\n\n".join(parts) or None


def _is_shared(server: ServerOptions, shared: dict[str, Connection]) -> bool:
    """Whether the parent has this server: started in the same way, whatever a child calls and hides of its tools."""
    held = shared.get(server.name)
    if held is None:
        return False
    as_the_child = attrs.evolve(
        held.options,
        prefix=server.prefix,
        allow_unprefixed_names=server.allow_unprefixed_names,
        allow=server.allow,
        deny=server.deny,
    )
    return as_the_child == server


def _describe(connection: Connection, tools: list[str]) -> dict[str, Any]:
    offer, failure = connection.offer, connection.failure
    return {
        "server": connection.options.name,
        "kind": connection.options.kind,
        "state": connection.state,
        "error": None if failure is None else str(failure),
        "error_type": None if failure is None else failure.kind,
        "server_info": None if offer is None else offer.server,
        "protocol": None if offer is None else offer.protocol,
        "seconds": round(connection.seconds, 3),
        "starts": connection.starts,
        "tools": tools,
        "pid": connection.pid,
    }


def _import_parts() -> tuple[Any, Any]:
    """Import what needs the SDK, which takes about a second; blocks."""
    try:
        from . import _connection, _tools  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("amplifier"):
            raise
        raise MissingExtraError(MODULE, extra="mcp", missing=error.name) from error
    return _connection, _tools


def login_of(options: ServerOptions) -> Any:
    """Return what adds the stored login of a server to HTTP requests; None if its plan has no ``oauth``.

    Without a session no one can log in, so a missing login is an error that names the command.
    """
    from ._transports import new_auth  # noqa: PLC0415 - needs the SDK, which takes a second to import

    return new_auth(options, _NoSession())  # type: ignore[arg-type]  # all that it uses of a coordinator


class _NoSession:
    """Stands for a coordinator where there is no session."""

    def get_capability(self, name: str) -> None:
        """Offer nothing."""
