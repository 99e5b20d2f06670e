"""The messages of one request, in the forms that the events and the provider get.

A context returns copies, which belong to the loop. The provider gets models of its own: nothing that it does with them reaches the
context, a later request or a handler.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat, takewhile
from typing import Any, Final, Literal, get_args

import attrs

from amplifier._json import copy_json
from amplifier.contracts import ContextManager
from amplifier.errors import ContractError
from amplifier.models import ContextInjection, Message, Role, ToolSpec, to_dict

from ..context import call_ids, count_tokens


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


_ROLES: Final = frozenset(get_args(Role))
_TEXTS: Final = frozenset({"role", "content", "name", "tool_call_id"})

INSTRUCTIONS = "system_prompt"
"""The ``source``, in the metadata, of the system messages that a loop stores for its plan."""


def source_of(message: dict[str, Any]) -> Any:
    """Who stored a message, where its metadata has it."""
    metadata = message.get("metadata")
    return metadata.get("source") if isinstance(metadata, dict) else None


def is_instruction(message: dict[str, Any]) -> bool:
    """Whether a loop has stored it for its plan."""
    return message.get("role") == "system" and source_of(message) == INSTRUCTIONS


def _with_latest_instructions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The instructions that were stored last, at the beginning, in place of all that were stored before."""
    given = [message for message in messages if "metadata" in message and is_instruction(message)]
    if not given or (given[0] is messages[0] and len(given) == 1):
        return messages
    return [given[-1], *(message for message in messages if not is_instruction(message))]


# ── what a service's prompt cache can use again ──────────────────────────────────────────────────
# A context that follows our contract adds at the end of its view until a compaction; tools and instructions stay as they are. So
# a break has one of three reasons, and each is worth knowing: it costs the price of reading everything behind it anew.

_CHARS_PER_TOKEN: Final = 4.0


@attrs.frozen
class PrefixBreak:
    """A request that does not begin as the one before did.

    Attributes:
        reason: What changed first, in the order in which services read it.
        same_messages: How many messages at the beginning are the same.
        tokens: What was sent before and has to be read anew, roughly.
    """

    reason: Literal["tools", "instructions", "messages"]
    same_messages: int
    tokens: int


class RequestPrefix:
    """Compares each request of a loop with the one before it."""

    def __init__(self) -> None:
        self._tools: Any = None
        self._messages: list[dict[str, Any]] = []

    def follow(self, tools: Sequence[ToolSpec] | None, messages: list[dict[str, Any]]) -> PrefixBreak | None:
        """Take the next request, without what is shown once only; returns what of the one before it cannot be used again."""
        described = [to_dict(tool) for tool in tools or ()]
        before, self._messages = self._messages, messages
        known, self._tools = self._tools, described
        if not before:
            return None
        if known != described:
            return PrefixBreak("tools", 0, _tokens(known) + sum(map(_tokens, messages)))
        if messages[: len(before)] == before:  # thousands of them, and nearly always
            return None
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, messages, strict=False)))
        changed = (*before[same : same + 1], *messages[same : same + 1])
        is_instruction = any(message.get("role") in ("system", "developer") for message in changed)
        return PrefixBreak("instructions" if is_instruction else "messages", same, sum(map(_tokens, messages[same:])))


def _tokens(value: Any) -> int:
    return count_tokens(value, _CHARS_PER_TOKEN)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _models(messages: list[dict[str, Any]]) -> list[Message]:
    """The messages as models that share nothing with them.

    Raises:
        ModelError: One of them is no message that a provider would understand.
    """
    models: list[Any] = list(map(Message.__new__, repeat(Message, len(messages))))
    for model, message in zip(models, messages, strict=True):
        role, content = message.get("role"), message.get("content")
        if type(content) is not str or type(role) is not str or role not in _ROLES:
            _fill(model, message)
        elif len(message) == 2:  # what the constructor makes of texts, in a tenth of the time
            model.role = role
            model.content = content
            model.extra = {}
            model.name = model.tool_call_id = model.metadata = None
        elif message.keys() <= _TEXTS and {str}.issuperset(map(type, message.values())):
            model.role, model.content, model.metadata, model.extra = role, content, None, {}
            model.name, model.tool_call_id = message.get("name"), message.get("tool_call_id")
        else:
            _fill(model, message)
    return models


def _fill(model: Any, message: dict[str, Any]) -> None:
    given = copy_json(message)  # a context of third parties may return what it stores, and change it later
    model.__init__(**(given if given.get("content") is not None else {**given, "content": ""}))


class RequestMessages:
    """What the model is to be shown.

    Args:
        messages: What the context returned.
        prefix: How the latest request of the loop began.
    """

    def __init__(self, messages: list[dict[str, Any]], prefix: RequestPrefix) -> None:
        self._messages = self._lasting = _with_latest_instructions(messages)
        self._prefix = prefix

    def cache_break(self, tools: Sequence[ToolSpec] | None) -> PrefixBreak | None:
        """What a service's cache has of the request before and cannot use for this one."""
        return self._prefix.follow(tools, self._lasting)

    def for_event(self) -> list[dict[str, Any]]:
        """For the payload of an event, of which each handler gets a copy."""
        return self._messages

    def call_ids(self) -> set[Any]:
        """The ids of the tool calls in them."""
        return {
            call_id for message in self._messages if message.get("role") == "assistant" for call_id in call_ids(message)
        }

    def add_ephemeral(self, injections: Sequence[ContextInjection]) -> None:
        """Add injections, which are shown once and never stored."""
        messages = self._messages = [*self._lasting] if injections else self._messages
        for item in injections:
            last = messages[-1] if messages else {}
            if item.append_to_last_tool_result and last.get("role") == "tool":
                content = last.get("content")
                if isinstance(content, list):
                    joined: Any = [*content, {"type": "text", "text": item.content}]
                else:
                    joined = f"{content or ''}\n\n{item.content}"
                messages[-1] = {**last, "content": joined}
            else:
                messages.append({"role": item.role, "content": item.content})

    def for_provider(self) -> list[Message]:
        """As the provider gets them.

        Raises:
            ModelError: One of them is no message that a provider would understand.
        """
        return _models(self._messages)
