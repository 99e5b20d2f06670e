"""The context contract: the stored conversation, and the view of it for a model.

`ContextManager` is the Protocol, and `CLAUSES` are the rules.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ._clause import constructors, numbered


@runtime_checkable
class ContextManager(Protocol):
    """Interface of a context for the orchestrator.

    A message is a plain dict with at least a ``role``.
    """

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message at the end. It is stored once this returns."""

    async def get_messages_for_request(
        self,
        token_budget: int | None = None,
        provider: Any | None = None,
    ) -> list[dict[str, Any]]:
        """Return the messages for the next request, compacted to fit if necessary.

        Args:
            token_budget: An explicit limit. It takes precedence over the limit of the provider.
            provider: Provider with the limit in ``get_info().defaults``: the context window less
                the output, less a margin.
        """

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return every stored message, never compacted."""

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace every stored message, as on resuming a session."""

    async def clear(self) -> None:
        """Delete every stored message."""


required, clarified, recommended, advised = constructors("context contract", "contexts")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    C1=required(
        "The context has async add_message, get_messages_for_request, get_messages, set_messages "
        "and clear.",
        hint="Give the context add_message, get_messages_for_request, get_messages, set_messages "
        "and clear, all async.",
    ),
    C2=required(
        "The context is mounted at 'context'.",
        hint='Call coordinator.mount("context", context) or return the context from mount.',
        look_at=("mount",),
    ),
    C3=clarified(
        "Every added message is kept, in order, with all its fields, equal messages included.",
        law="L5",
        hint="Append an unchanged copy of the message. Drop and merge nothing.",
        look_at=("add_message",),
    ),
    C4=clarified(
        "The context shares no state with its callers: changing an argument or a returned message "
        "changes nothing stored.",
        law="L8",
        hint="Use copy.deepcopy on every message that comes in and on every message that you "
        "return.",
        look_at=("get_messages", "add_message"),
    ),
    C5=required(
        "A message whose add_message has returned stays stored, whatever is cancelled afterwards.",
        law="L5",
        source="L5",
        hint="Store first and await afterwards, or shield the storing.",
        look_at=("add_message",),
    ),
    C6=required(
        "get_messages returns the whole history: compaction is a view and changes nothing stored.",
        law="L5",
        hint="Compact a copy, and leave the stored messages alone.",
    ),
    C7=required(
        "get_messages_for_request compacts the history if it does not fit.",
        hint="Measure the history in get_messages_for_request and leave out the oldest messages "
        "if it does not fit.",
    ),
    C8=clarified(
        "The view fits the budget: the explicit one, or without it the provider's context window "
        "less its output less a margin.",
        hint="Compute the budget from token_budget, or without it from "
        "provider.get_info().defaults, and stay below it.",
    ),
    C9=required(
        "The view keeps a tool call and all its results together, or leaves all of them out.",
        law="L5",
        hint="Treat an assistant message with tool calls and all their results as one piece.",
    ),
    C10=required(
        "The view is in conversation order.", hint="Keep the order of the history in the view."
    ),
    C11=clarified(
        "The view keeps system messages, wherever they are in the history.",
        hint="Set system messages aside first, because they always stay.",
    ),
    C12=clarified(
        "The view ends with the newest message, in any form, even an empty one, if the budget is "
        "too small for it.",
        hint="Fill the view from the newest message backwards.",
    ),
    C13=clarified(
        "Messages with None as content are accepted everywhere.",
        hint="Write message.get('content') or '' where you measure.",
        look_at=("add_message",),
    ),
    C14=clarified(
        "clear and set_messages replace everything, counters and files included.",
        hint="Replace everything that belongs to the old messages: lists, counters, files.",
        look_at=("clear", "set_messages"),
    ),
    C15=clarified(
        "Concurrent calls lose and mix nothing.",
        law="L8",
        hint="Guard state that spans an await with anyio.Lock.",
        look_at=("add_message",),
    ),
    C16=recommended(
        "The token count is accurate enough that a history within the budget is returned whole.",
        hint="Count about four characters as a token, or use the provider's tokenizer.",
    ),
    C17=recommended(
        "context:pre_compact and context:post_compact are emitted with message_count and "
        "token_count.",
        hint="Emit both events through coordinator.hooks around a compaction.",
    ),
    C18=recommended(
        "The limit and the threshold of compaction are configurable.",
        hint="Read max_tokens and compact_threshold from the configuration.",
        look_at=("mount",),
    ),
    C19=advised(
        "A message without a role is refused with a ValueError, and nothing is stored.",
        hint="Raise ValueError before anything is stored.",
        look_at=("add_message",),
    ),
    C20=advised(
        "As long as nothing is compacted, the view is the previous one with the new messages at "
        "its end, and an equal request gets the same view.",
        hint="Put nothing into the view that changes from request to request: a service's prompt "
        "cache ends at the first difference.",
        look_at=("get_messages_for_request",),
    ),
    C21=advised(
        "A provider that fails to write a summary does not fail the request.",
        law="L4",
        hint="Request the summary under a deadline, catch the provider's errors, and leave the "
        "oldest messages out instead.",
        look_at=("get_messages_for_request",),
    ),
    C22=advised(
        "The view shows the newest request word for word, if the budget has room for it and for "
        "all later messages.",
        hint="Shorten and summarise only messages before the newest user message that is not a "
        "tool result.",
        look_at=("get_messages_for_request",),
    ),
)
# fmt: on
