"""context-simple: the conversation in memory, shown to the model as far as it fits.

All messages are kept until `clear` or `set_messages`. A compaction only changes the view.
"""

from __future__ import annotations

from typing import Any, final

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator

from .._shared.configuration import read_options
from . import ContextOptions, SharedContext, checked_copy

__all__ = ["SimpleContext", "mount"]

__amplifier_module_type__ = "context"


@final
class SimpleContext(SharedContext):
    """Keeps messages in memory.

    Only `get_messages_for_request` and `uncompact` suspend, and only for the events and the summary
    of a compaction. So concurrent calls from tasks in one event loop lose nothing, and a cancelled
    call has taken effect completely or not at all.
    """

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<SimpleContext with {now.messages} messages, about {now.tokens} tokens>"

    async def add_message(self, message: dict[str, JSON]) -> None:
        """Append a copy of a message.

        Raises:
            ValueError: The message has no role, or contains itself. Nothing was stored.
        """
        self._conversation.append(checked_copy(message))

    async def set_messages(self, messages: list[dict[str, JSON]]) -> None:
        """Replace all messages with copies of other messages.

        Raises:
            ValueError: A new message has no role, or contains itself. Nothing was replaced.
        """
        self._conversation.replace([checked_copy(message) for message in messages])

    async def clear(self) -> None:
        """Remove all messages."""
        self._conversation.replace(())


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the context. `ContextOptions` describes its configuration."""
    options = read_options(ContextOptions, "context-simple", config)
    context = SimpleContext(options, coordinator.hooks, coordinator)
    await coordinator.mount("context", context)
    context.observe(coordinator, "context-simple")
