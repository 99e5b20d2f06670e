"""An agent as an MCP server, for the clients of other hosts; needs the extra ``mcp``.

The other direction, the tools of MCP servers for an agent, is the built-in module ``tool-mcp``.
"""

from ._serve import serve

__all__ = ["serve"]
