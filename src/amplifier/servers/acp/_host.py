"""What the protocol needs from the application that offers the sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from amplifier.contracts import ApprovalSystem
from amplifier.kernel import AmplifierSession
from amplifier.store import SessionRecord

__all__ = ["SessionHost"]


class SessionHost(Protocol):
    """Makes sessions, knows stored ones, and hears of turns."""

    @property
    def has_mcp(self) -> bool:
        """Whether sessions can use MCP servers that the client names."""
        ...

    def new_id(self) -> str:
        """The id of a new session."""
        ...

    def make(
        self,
        session_id: str,
        directory: Path,
        servers: dict[str, dict[str, Any]],
        approvals: ApprovalSystem,
        *,
        is_resumed: bool,
    ) -> AmplifierSession:
        """A session that is not opened yet.

        Args:
            session_id: Its id.
            directory: Its working directory.
            servers: MCP servers by name, as in the configuration of tool-mcp; empty if there is no such module.
            approvals: Its approval system.
            is_resumed: The session is a stored one.

        Raises:
            Exception: It cannot be made; the text is the client's answer.
        """
        ...

    def check(self, session: AmplifierSession) -> None:
        """Check a session that has just been opened; raises if it cannot be used."""
        ...

    def commands(self, directory: Path) -> dict[str, str]:
        """The user's own commands, by name: the texts that they stand for."""
        ...

    def stored(self) -> list[SessionRecord]:
        """The sessions that can be loaded, the one used last first."""
        ...

    def delete(self, session_id: str) -> None:
        """Forget a stored session; nothing happens if there is none."""
        ...

    def turn_begins(self, session_id: str, prompt: str) -> None:
        """A turn begins."""
        ...

    def turn_ended(self, session_id: str, status: str) -> None:
        """A turn has ended: success, error or cancelled."""
        ...
