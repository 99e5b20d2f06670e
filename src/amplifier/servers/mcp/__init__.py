"""An agent as an MCP server, for the clients of other hosts. Needs the extra ``mcp``."""

from ._serve import serve

__all__ = ["serve"]
