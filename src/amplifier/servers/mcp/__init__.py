"""An agent as an MCP server for other hosts. This package needs the extra ``mcp``."""

from ._serve import serve

__all__ = ["serve"]
