"""The display contract: where messages from hooks to the user end up.

Above stands the host; below stand the models.
"""

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
            source: Who says it, such as ``hook:redaction``.
        """
        ...
