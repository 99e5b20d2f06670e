"""A context for tests: a list of messages with the five methods of the contract."""

from __future__ import annotations

from typing import Any, final

from amplifier._json import copy_json


@final
class MockContextManager:
    """Keeps everything it is given and never compacts.

    Args:
        messages: What it holds from the beginning; copied.

    Attributes:
        messages: What is stored, for assertions. What the methods take and give are copies of it.
        requests: The arguments of every `get_messages_for_request`.
    """

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages: list[dict[str, Any]] = copy_json(messages or [])
        self.requests: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<MockContextManager with {len(self.messages)} messages>"

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message.

        Raises:
            ValueError: It has no role.
        """
        self.messages.append(_checked(message))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Everything stored, whatever the budget."""
        self.requests.append({"token_budget": token_budget, "provider": provider})
        return await self.get_messages()

    async def get_messages(self) -> list[dict[str, Any]]:
        """Everything stored."""
        stored: list[dict[str, Any]] = copy_json(self.messages)
        return stored

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything stored.

        Raises:
            ValueError: One of them has no role; nothing was replaced.
        """
        self.messages[:] = [_checked(message) for message in messages]

    async def clear(self) -> None:
        """Forget everything stored."""
        self.messages.clear()


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    if "role" not in message:
        raise ValueError(f"a message needs a 'role' such as 'user'; got the keys {sorted(message)!r}")
    copied: dict[str, Any] = copy_json(message)
    return copied
