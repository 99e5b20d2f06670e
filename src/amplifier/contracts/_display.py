"""The display contract: where messages from hooks to the user are shown."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from amplifier.models import UserMessageLevel


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages; given to the session by the application. What it raises is logged and goes no further."""

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Show a message without waiting for anybody.

        Args:
            message: The text.
            level: How loud it is.
            source: The origin of the message, such as ``hook:redaction``.
        """
