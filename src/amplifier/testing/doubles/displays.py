"""A display for tests: records the messages it is asked to show."""

from __future__ import annotations

from typing import final

from amplifier.models import UserMessageLevel


@final
class MockDisplaySystem:
    """Shows nothing and remembers everything.

    Attributes:
        messages: Triples of text, level and source, in order.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []

    def __repr__(self) -> str:
        return f"<MockDisplaySystem {len(self.messages)} messages>"

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Remember a message."""
        self.messages.append((message, level, source))
