"""Servers through which other programs use an agent: HTTP (OpenAI, AG-UI, sessions, the page), editors (ACP), MCP clients."""

from .sessions import SessionFactory, SessionRequest

__all__ = ["SessionFactory", "SessionRequest"]
