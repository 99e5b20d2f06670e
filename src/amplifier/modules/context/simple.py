"""context-simple: the conversation in memory, shown to the model as far as it fits.

Everything given is kept until `clear` or `set_messages`; compaction is a view of it and changes nothing. What both
built-in contexts share is in this folder.
"""

from __future__ import annotations

from typing import Any, final

from amplifier.contracts import Coordinator, Hooks

from .._shared.configuration import read_options
from . import (
    ContextOptions,
    Conversation,
    Statistics,
    announce_events,
    checked_copy,
    messages_for_request,
)

__all__ = ["SimpleContext", "mount"]

__amplifier_module_type__ = "context"


@final
class SimpleContext:
    """Keeps messages in memory.

    No method but `get_messages_for_request` suspends, and that one only to emit the events of a compaction; so calls from
    many tasks of one event loop neither lose nor mix anything, and a cancelled call has happened or has not.

    Args:
        options: How much a request may hold.
        hooks: Where compactions are emitted.
    """

    def __init__(self, options: ContextOptions | None = None, hooks: Hooks | None = None) -> None:
        self._options = options or ContextOptions()
        self._hooks = hooks
        self._conversation = Conversation(self._options.chars_per_token)

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<SimpleContext with {now.messages} messages, about {now.tokens} tokens>"

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a copy of a message at the end.

        Raises:
            ValueError: It has no role, or contains itself; nothing was stored.
        """
        self._conversation.append(checked_copy(message))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """What the model is to be shown: everything if it fits, else a compacted view.

        Args:
            token_budget: What it must fit; without one the provider is asked, then the config decides.
            provider: Its ``get_info().defaults`` have the context window and the longest answer.
        """
        return await messages_for_request(self._conversation, self._options, self._hooks, token_budget, provider)

    async def get_messages(self) -> list[dict[str, Any]]:
        """Everything stored, never compacted."""
        return self._conversation.copy()

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything stored by copies of these.

        Raises:
            ValueError: One of them has no role, or contains itself; nothing was replaced.
        """
        self._conversation.replace([checked_copy(message) for message in messages])

    async def clear(self) -> None:
        """Remove everything stored."""
        self._conversation.replace(())

    def statistics(self) -> Statistics:
        """How much is stored, and how many views had to be compacted."""
        return self._conversation.statistics()


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the context; see `ContextOptions` for its configuration."""
    context = SimpleContext(read_options(ContextOptions, "context-simple", config), coordinator.hooks)
    await coordinator.mount("context", context)
    announce_events(coordinator, "context-simple")
