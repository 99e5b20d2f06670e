"""Which tools of the servers a session mounts, and under which names."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from amplifier.contracts import Coordinator

from .._tool_base import shown
from ._connection import Connection
from ._options import McpOptions, ServerOptions
from ._server_offer import OfferedTool
from ._tools import GetPromptTool, ReadResourceTool, RemoteTool, ServerTool

logger = logging.getLogger("amplifier.modules.tool-mcp")

_LONGEST_NAME = 64
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(options: ServerOptions, name: str) -> str:
    """The name for the model: letters, digits, ``_`` and ``-``, at most 64 of them, as model providers demand."""
    wanted = f"{options.tool_prefix}{name}"
    clean = _NOT_IN_A_NAME.sub("_", wanted)
    if len(clean) <= _LONGEST_NAME:
        return clean or "_"
    return f"{clean[: _LONGEST_NAME - 9]}_{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def is_wanted(options: ServerOptions, name: str) -> bool:
    """Whether the plan lets a tool of the server be mounted."""
    if any(fnmatchcase(name, pattern) for pattern in options.deny):
        return False
    return options.allow is None or any(fnmatchcase(name, pattern) for pattern in options.allow)


class ToolMounting:
    """The tools of one session.

    Args:
        coordinator: The session's.
        options: The module's.
    """

    def __init__(self, coordinator: Coordinator, options: McpOptions) -> None:
        self._coordinator = coordinator
        self._max_chars = options.max_result_chars
        self._options = {server.name: server for server in options.servers}
        self._mounted: dict[str, ServerTool] = {}

    def names(self, server: str) -> list[str]:
        """The names of the mounted tools of a server."""
        return [name for name, tool in self._mounted.items() if tool.server == server]

    async def update(self, connection: Connection) -> None:
        """Mount what the server offers now, and unmount what it does not offer any more."""
        server = connection.options.name
        wanted: dict[str, ServerTool] = {}
        for tool in self._offered(connection):
            holder = wanted.get(tool.name) or self._mounted.get(tool.name) or self._coordinator.get("tools", tool.name)
            if tool.name in wanted or (holder is not None and getattr(holder, "server", None) != server):
                logger.warning(
                    "server %r: a tool is not mounted, because %s has the name %r already; give one of them another prefix",
                    server,
                    f"server {holder.server!r}" if isinstance(holder, ServerTool) else "another module",
                    tool.name,
                )
                continue
            wanted[tool.name] = tool
        for name in self.names(server):
            if name not in wanted:
                await self._coordinator.unmount("tools", name)
                del self._mounted[name]
        for name, tool in wanted.items():
            if not _is_same(self._mounted.get(name), tool):
                await self._coordinator.mount("tools", tool)
                self._mounted[name] = tool

    def _offered(self, connection: Connection) -> Iterator[ServerTool]:
        offer = connection.offer
        if offer is None:
            return
        options = self._options[connection.options.name]  # a child's lists may differ from its parent's
        known = {tool.name for tool in offer.tools}
        unknown = [name for name in options.allow or () if not any(fnmatchcase(tool, name) for tool in known)]
        if unknown:
            logger.warning(
                "server %r: allow names %s, which it does not offer; it offers %s",
                options.name,
                shown(", ".join(map(repr, unknown))),
                shown(", ".join(sorted(known))) or "no tools",
            )
        for offered in offer.tools:
            if is_wanted(options, offered.name):
                yield self._remote(options, offered, connection)
        extras: list[tuple[bool, str, type[ServerTool]]] = [
            (offer.has_resources, "read_resource", ReadResourceTool),
            (offer.has_prompts, "get_prompt", GetPromptTool),
        ]
        for is_there, name, kind in extras:
            if is_there and name not in known and not any(fnmatchcase(name, each) for each in options.deny):
                yield kind(tool_name(options, name), connection, self._coordinator, max_chars=self._max_chars)

    def _remote(self, options: ServerOptions, offered: OfferedTool, connection: Connection) -> RemoteTool:
        name = tool_name(options, offered.name)
        return RemoteTool(name, offered, connection, self._coordinator, max_chars=self._max_chars)


def _is_same(old: ServerTool | None, new: ServerTool) -> bool:
    if isinstance(old, RemoteTool) and isinstance(new, RemoteTool):
        return old.offered == new.offered
    return type(old) is type(new)
