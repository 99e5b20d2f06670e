"""The messages of one request, in the forms that the events and the provider get.

A built-in context hands out what it stores, built once; the event and the request get lists that copy it when they are
read. Any other context hands out what the contract says, and it is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amplifier._json import copy_json
from amplifier.contracts import ContextManager, Hooks, Provider
from amplifier.errors import ContractError
from amplifier.models import ContextInjection, Message
from amplifier.models._definition.shared_list import SharedList, detached

from .._chat_history import MessageView, StoredMessage, shared_form
from .heard_events import knows_handlers


def checked_messages(context: ContextManager, method: str, messages: Any) -> list[dict[str, Any]]:
    """What a method of a context returned.

    Raises:
        ContractError: It is no list.
    """
    if isinstance(messages, list):
        return messages
    name = type(context).__name__
    raise ContractError(
        f"context {name} returned {type(messages).__name__} from {method}(); expected a list of messages", module=name
    )


class RequestMessages:
    """What the model is to be shown.

    Args:
        view: The messages.
        are_shared: They belong to the context, and are copied when the event or the request is read.
    """

    def __init__(self, view: MessageView, *, are_shared: bool) -> None:
        self._view = view
        self._are_shared = are_shared

    @classmethod
    async def read(cls, context: ContextManager, provider: Provider) -> RequestMessages:
        """Ask a context."""
        shared = shared_form(context.get_messages_for_request)
        if shared is not None:
            return cls(await shared(provider=provider), are_shared=True)
        method = "get_messages_for_request"
        given = checked_messages(context, method, await context.get_messages_for_request(provider=provider))
        return cls(MessageView([StoredMessage(message) for message in given]), are_shared=False)

    def for_event(self, hooks: Hooks) -> list[dict[str, Any]]:
        """For the payload of an event, of which a `HookRegistry` gives each handler a copy."""
        messages = [stored.message for stored in self._view.messages()]
        if not self._are_shared:
            return messages
        shared = SharedList(messages, copy_json)
        if not knows_handlers(hooks):  # it may hand out what it gets
            shared.own()
        return shared

    def add_ephemeral(self, injections: Sequence[ContextInjection]) -> None:
        """Add injections, which are shown once and never stored."""
        if not injections:
            return
        messages = self._view.messages()
        for item in injections:
            last = messages[-1].message if messages else {}
            if item.append_to_last_tool_result and last.get("role") == "tool":
                content = last.get("content")
                if isinstance(content, list):
                    joined: Any = [*content, {"type": "text", "text": item.content}]
                else:
                    joined = f"{content or ''}\n\n{item.content}"
                messages[-1] = StoredMessage({**last, "content": joined})
            else:
                messages.append(StoredMessage({"role": item.role, "content": item.content}))
        self._view = MessageView(messages)

    def for_provider(self) -> list[Message]:
        """As the provider gets them.

        Raises:
            ModelError: One of them is no message that a provider would understand.
        """
        models = self._view.models()
        return SharedList(models, detached) if self._are_shared else models
