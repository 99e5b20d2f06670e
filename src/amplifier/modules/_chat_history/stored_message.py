"""A stored message in the forms in which it is shown, and the way for a loop to get stored messages without a copy.

A context returns copies, because whoever asks may change what it gets. The built-in loops change nothing, so they ask for the
stored messages themselves. `shared_form` returns that way only for the very methods of the built-in contexts: a context of third
parties, a subclass that overrides the method, a proxy and a patched instance are asked as the contract demands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, final

import attrs

from amplifier.models import Message


@attrs.define(eq=False)
class StoredMessage:
    """One message that never changes.

    Attributes:
        message: As a dict; belongs to whoever stores it.
        model: As a request has it, once `build_model` was called; must not be changed.
    """

    message: dict[str, Any]
    model: Message | None = attrs.field(default=None, init=False)

    def build_model(self) -> Message:
        """Build the model.

        Raises:
            ModelError: It is no message that a provider would understand.
        """
        given = self.message
        self.model = Message(**(given if given.get("content") is not None else {**given, "content": ""}))
        return self.model


@final
class MessageView:
    """What one request shows: the messages that a list has now, or all of it if nothing is added any more.

    Args:
        messages: To which others may add, but nothing else.
        models: The models of the first of them, to which those that are missing are added. Whoever keeps both lists for the next
            view saves it the way through all messages.
    """

    __slots__ = ("_length", "_messages", "_models")

    def __init__(self, messages: list[StoredMessage], models: list[Message] | None = None) -> None:
        self._messages = messages
        self._models: list[Message] = [] if models is None else models
        self._length = len(messages)

    def messages(self) -> list[StoredMessage]:
        """The messages, in a list of the caller's own."""
        return self._messages[: self._length]

    def models(self) -> list[Message]:
        """The messages as models; neither the list nor they may be changed.

        Raises:
            ModelError: One of them is no message that a provider would understand.
        """
        models = self._models
        for stored in islice(self._messages, len(models), self._length):
            models.append(stored.model or stored.build_model())
        return models if len(models) == self._length else models[: self._length]


_SHARED_FORMS: dict[FunctionType, FunctionType] = {}


def share(method: Any, shared: Any) -> None:
    """Declare a function that returns the same as a method of a context, as a list of `StoredMessage` or as a `MessageView`."""
    _SHARED_FORMS[method] = shared


def shared_form(method: Any) -> Callable[..., Awaitable[Any]] | None:
    """The function that returns the same as a bound method of a context, not copied; None if there is none."""
    if type(method) is not MethodType or type(method.__func__) is not FunctionType:
        return None
    shared = _SHARED_FORMS.get(method.__func__)
    return None if shared is None else MethodType(shared, method.__self__)
