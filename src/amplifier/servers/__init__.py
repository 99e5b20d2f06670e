"""Servers through which other programs use an agent: HTTP, editors (ACP) and MCP clients."""

from .sessions import SessionFactory, SessionRequest

__all__ = ["SessionFactory", "SessionRequest"]
