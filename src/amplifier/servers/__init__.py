"""Doors through which other programs use an agent: HTTP (OpenAI, AG-UI, sessions, the page), editors (ACP), MCP clients."""

__all__: list[str] = []
