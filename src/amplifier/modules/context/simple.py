"""context-simple: the conversation in memory, shown to the model as far as it fits.

Everything given is kept until `clear` or `set_messages`; compaction is a view of it and changes nothing. What both
built-in contexts share is in this folder.
"""

from __future__ import annotations

from typing import Any, final

from amplifier.contracts import Coordinator

from .._shared.configuration import read_options
from . import ContextOptions, SharedContext, checked_copy

__all__ = ["SimpleContext", "mount"]

__amplifier_module_type__ = "context"


@final
class SimpleContext(SharedContext):
    """Keeps messages in memory.

    No method but `get_messages_for_request` and `uncompact` suspends, and these only for the events of a compaction and its summary; so
    calls from many tasks of one event loop neither lose nor mix anything, and a cancelled call has happened or has not.
    """

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<SimpleContext with {now.messages} messages, about {now.tokens} tokens>"

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a copy of a message at the end.

        Raises:
            ValueError: It has no role, or contains itself; nothing was stored.
        """
        self._conversation.append(checked_copy(message))

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything stored by copies of these.

        Raises:
            ValueError: One of them has no role, or contains itself; nothing was replaced.
        """
        self._conversation.replace([checked_copy(message) for message in messages])

    async def clear(self) -> None:
        """Remove everything stored."""
        self._conversation.replace(())


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the context; see `ContextOptions` for its configuration."""
    context = SimpleContext(
        read_options(ContextOptions, "context-simple", config), coordinator.hooks, coordinator
    )
    await coordinator.mount("context", context)
    context.observe(coordinator, "context-simple")
