"""The MCP servers that a file names, and a session that has nothing but them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from amplifier._json import rebuild
from amplifier._spelling import suggestion
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.kernel import AmplifierSession
from amplifier.plan import expand_variables

from .plan_files import read_plan_file

_MODULE = "tool-mcp"
_ENV_VARIABLE = re.compile(r"\$\{env:(\w+)\}")
_INPUT_VARIABLE = re.compile(r"\$\{input:([\w-]+)\}")


def read_servers(file: Path, *, expand: bool = True) -> dict[str, Any]:
    """The configuration of tool-mcp in a mount plan, or in a file of another host, with its variables filled in if wanted so.

    Raises:
        CommandError: The file names no servers.
        PlanError: A variable is not set.
    """
    content = read_plan_file(file)
    servers = servers_of(content)
    found = None if servers is None else {"servers": servers}
    entries = content.get("tools") if isinstance(content, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("module") == _MODULE:
            found = dict(entry.get("config") or {})
    if found is not None:
        return expand_variables(found, os.environ) if expand else found
    raise CommandError(
        f"{file}: there are no MCP servers in it; expected a plan with the module {_MODULE}, or an object mcpServers"
    )


def servers_of(content: Any) -> dict[str, Any] | None:
    """The servers in a file of another host, with variables in the form of plans; None if it is no such file."""
    if not isinstance(content, Mapping):
        return None
    servers = content.get("mcpServers")
    if servers is None and "session" not in content and "tools" not in content:
        servers = content.get("servers")  # of VS Code
    return with_variables_of_plans(dict(servers)) if isinstance(servers, Mapping) else None


def with_variables_of_plans(value: Any) -> Any:
    """Values of another host with variables in the form of plans: ``${env:NAME}`` becomes ``${NAME}``."""

    def visit(each: Any, _frames: object) -> Any:
        if not isinstance(each, str):
            return each
        each = _ENV_VARIABLE.sub(r"${\1}", each)
        return _INPUT_VARIABLE.sub(lambda found: f"${{{found[1].replace('-', '_').upper()}}}", each)

    return rebuild(value, visit)


@asynccontextmanager
async def open_servers(
    config: dict[str, Any], only: tuple[str, ...] = (), *, login: Any = None, **changes: Any
) -> AsyncIterator[list[tuple[dict[str, Any], list[Any]]]]:
    """Open servers as a session would; gives what is known about each, and its mounted tools.

    Args:
        config: The configuration of tool-mcp.
        only: Names of the servers to open; all, if there are none.
        login: Shows the user where to log in.
        changes: Options that every server gets.

    Raises:
        CommandError: There is no server of that name.
        PlanError: The configuration is wrong.
    """
    key = "servers" if "servers" in config else "mcpServers"
    servers = config.get(key) or {}
    for name in only:
        if name not in servers:
            known = ", ".join(servers) or "none"
            raise CommandError(f"there is no server {name!r}{suggestion(name, servers)} The servers are: {known}")
    wanted = {name: {**server, **changes} for name, server in servers.items() if not only or name in only}
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
        "providers": ["provider-mock"],
        "tools": [{"module": _MODULE, "config": {**config, key: wanted}}],
    }
    session = AmplifierSession(plan)
    if login is not None:
        session.coordinator.register_capability("mcp.login", login)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(session)
        except ExceptionGroup as group:
            raise CommandError("\n".join(str(error) for error in group.exceptions), exit_code=Exit.USAGE) from group
        tools = session.coordinator.get("tools").values()
        yield [
            (each, [tool for tool in tools if getattr(tool, "server", None) == each["server"]])
            for each in session.coordinator.get_capability("mcp.status")()
        ]
