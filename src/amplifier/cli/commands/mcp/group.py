"""The list of the commands of ``amplifier mcp``."""

from __future__ import annotations

import click

from ..lazy_group import LazyGroup

__all__ = ["mcp"]

_COMMANDS = {
    "list": "mcp.servers:list_tools",
    "test": "mcp.servers:test_servers",
    "call": "mcp.call:call_tool",
    "login": "mcp.servers:login",
    "import": "mcp.import_servers:import_servers",
    "serve": "mcp.serve:serve",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def mcp() -> None:
    """See what MCP servers offer, call their tools, use the servers of other hosts, serve an agent."""
