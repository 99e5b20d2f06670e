"""``amplifier mcp``: what MCP servers offer, a call by hand, the servers of other hosts, an agent as a server."""

from .group import mcp

__all__ = ["mcp"]
