"""Open all servers at the same time, mount their tools, and share them with child sessions."""

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
"""The capability with a function that returns the status of every server."""
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
    """Open the servers of the plan and mount their tools.

    A server that fails is reported, and the others can be used.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `McpOptions`.

    Raises:
        PlanError: The config is invalid.
        MissingExtraError: The MCP SDK isn't installed.
        ModuleLoadError: A server with ``required: true`` failed.
    """
    options = await anyio.to_thread.run_sync(read_mcp_options, config)
    if not options.servers:
        logger.info("%s: the plan has no servers", MODULE)
        yield
        return
    connection_module, tools_module = await anyio.to_thread.run_sync(_import_parts)
    # The first call starts a program. Later calls return the same result without blocking.
    await anyio.to_thread.run_sync(can_supervise)
    shared: dict[str, Connection] = (
        (coordinator.get_capability(SERVERS) or {}) if options.share else {}
    )
    own = {
        server.name: connection_module.Connection(server, coordinator, options.max_message_bytes)
        for server in options.servers
        if not _is_shared(server, shared)
    }
    connections = {
        server.name: own.get(server.name) or shared[server.name] for server in options.servers
    }
    tools = tools_module.ToolMounting(coordinator, options)
    async with anyio.create_task_group() as group:
        for connection in own.values():
            group.start_soon(connection.run, name=f"MCP server {connection.options.name}")
        try:
            async with anyio.create_task_group() as opening:
                for connection in own.values():
                    opening.start_soon(connection.open)
            failures = [
                connection.failure
                for connection in own.values()
                if connection.options.is_required and connection.failure is not None
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
    """Emit the results of opening the servers, now that every hook is mounted."""
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
            details = {
                key: server[key] for key in ("server", "seconds", "starts", "protocol", "tools")
            }
            await coordinator.hooks.emit("mcp:server_connected", details)


def _instructions(connections: dict[str, Connection]) -> str | None:
    """Return the instructions of the servers, for the system prompt."""
    instructions = {
        name: connection.offer.instructions
        for name, connection in connections.items()
        if connection.offer
    }
    parts = [
        f"Instructions from the MCP server {name} for its tools:\n{text}"
        for name, text in instructions.items()
        if text
    ]
    return "\n\n".join(parts) or None


def _is_shared(server: ServerOptions, shared: dict[str, Connection]) -> bool:
    """Return whether the parent has this server and started it in the same way.

    A child may have another prefix, and may allow and deny other tools.
    """
    connection = shared.get(server.name)
    if connection is None:
        return False
    options = attrs.evolve(
        connection.options,
        prefix=server.prefix,
        allow_unprefixed_names=server.allow_unprefixed_names,
        allow=server.allow,
        deny=server.deny,
    )
    return options == server


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
    """Import the files that need the SDK. This blocks for about a second."""
    try:
        from . import _connection, _tools  # noqa: PLC0415 — they need an extra
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("amplifier"):
            raise
        raise MissingExtraError(MODULE, extra="mcp", missing=error.name) from error
    return _connection, _tools


def login_of(options: ServerOptions) -> Any:
    """Return an object that adds the stored login of a server to HTTP requests.

    Without a session no one can log in, so a missing login is an error that names the command to
    run.

    Returns:
        The object, or None if the options have no ``oauth``.
    """
    from ._transports import new_auth  # noqa: PLC0415 — the SDK takes a second to import

    return new_auth(options, _NoSession())  # type: ignore[arg-type]  # it calls nothing else


class _NoSession:
    """A substitute for the coordinator where there is no session."""

    def get_capability(self, name: str) -> None:
        """Return None, because no capability is registered."""
