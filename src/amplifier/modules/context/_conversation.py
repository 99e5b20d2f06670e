"""The conversation in memory: messages in order, with what the view needs to know of each, computed once.

A stored message is never changed. What modules give and get are copies. No method awaits, so that on one event loop every method
is one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import attrs

from amplifier._json import LEAVES, Frame, copy_json, rebuild
from amplifier.models import Model, to_dict

from ._token_estimate import count_tokens
from ._tool_call_pairs import CallId, call_ids, result_ids

SYSTEM_ROLES = frozenset({"system", "developer"})


@final
@attrs.define(eq=False, kw_only=True)
class Entry:
    """One stored message, with what every view asks of it.

    Attributes:
        message: As a dict, which is never changed.
        is_flat: Nothing in it has to be copied.
        tokens: What it takes of a budget, roughly.
        answers: Positions of the messages whose tool calls it answers.
        is_orphan: It answers calls that no message made, so that no provider would accept it.
        is_system: It is an instruction, which no view leaves out.
        is_prompt: It is text of a user; results in a user's message are not.
    """

    message: dict[str, Any]
    is_flat: bool
    tokens: int
    answers: tuple[int, ...]
    is_orphan: bool
    is_system: bool
    is_prompt: bool


@final
@attrs.frozen(kw_only=True)
class Statistics:
    """A context at one moment.

    Attributes:
        messages: How many are stored.
        tokens: What they take together, roughly.
        compactions: How many views were compacted since the conversation began or was replaced.
    """

    messages: int
    tokens: int
    compactions: int


@final
class Conversation:
    """Messages in order.

    Args:
        chars_per_token: See `ContextOptions`.

    Attributes:
        entries: What is stored; a new list whenever everything is replaced, so that a reader may hold on to the old.
        shown: The entries that a view may show: all but orphans. A new list whenever everything is replaced.
        tokens: What can be shown of it takes, roughly.
        compactions: How many views were compacted; counted by those who make them.
    """

    def __init__(self, chars_per_token: float) -> None:
        self._chars_per_token = chars_per_token
        self._call_positions: dict[CallId, int] = {}
        self.entries: list[Entry] = []
        self.shown: list[Entry] = []
        self.tokens: int = 0
        self.compactions: int = 0

    def append(self, message: dict[str, Any]) -> None:
        """Store a message, which belongs to the conversation from here on."""
        position = len(self.entries)
        results = result_ids(message)
        # Ids should be unique over a conversation. Where they are not, a result belongs to the latest call of its id.
        positions = self._call_positions
        answers = tuple(dict.fromkeys(positions[call] for call in results if call in positions)) if results else ()
        role = message["role"]
        is_orphan = bool(results) and not answers and _says_nothing_else(message)
        entry = Entry(
            message=message,
            is_flat=LEAVES.issuperset(map(type, message.values())),
            tokens=count_tokens(message, self._chars_per_token),
            answers=answers,
            is_orphan=is_orphan,
            is_system=role in SYSTEM_ROLES,
            is_prompt=role == "user" and not answers and not is_orphan,
        )
        for call in call_ids(message) if role == "assistant" else ():
            positions[call] = position
        self.entries.append(entry)
        if not entry.is_orphan:
            self.shown.append(entry)
            self.tokens += entry.tokens

    def replace(self, messages: Iterable[dict[str, Any]]) -> None:
        """Replace everything by these messages, which belong to the conversation from here on."""
        self.entries, self.shown, self.tokens, self.compactions = [], [], 0, 0
        self._call_positions = {}
        for message in messages:
            self.append(message)

    def adopt(self, other: Conversation) -> None:
        """Replace everything by another conversation, which must not be used any more.

        Thousands of messages take time to go through; this way they can be in a worker thread.
        """
        self.entries, self.shown = other.entries, other.shown
        self.tokens, self.compactions = other.tokens, other.compactions
        self._call_positions = other._call_positions

    def copy(self) -> list[dict[str, Any]]:
        """Everything that was stored."""
        return copies(self.entries)

    def statistics(self) -> Statistics:
        """The conversation now."""
        tokens = sum(entry.tokens for entry in self.entries)
        return Statistics(messages=len(self.entries), tokens=tokens, compactions=self.compactions)


def copies(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Copies of stored messages, for others to keep."""
    return [entry.message.copy() if entry.is_flat else copy_json(entry.message) for entry in entries]


def require_role(message: Any) -> None:
    """Refuse what is no message.

    Raises:
        ValueError: It is no dict, or has no role.
    """
    if not isinstance(message, dict):
        raise ValueError(f"expected a message as a dict with a 'role' such as 'user', got a {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        found = f"the role {message['role']!r}" if "role" in message else f"the keys {sorted(map(str, message))[:20]!r}"
        raise ValueError(f"a message needs a 'role' such as 'user', as text; got {found}")


def checked_copy(message: Any) -> dict[str, Any]:
    """A message for the conversation to keep.

    Raises:
        ValueError: It is no message, or cannot be copied (`ModelError`).
    """
    require_role(message)
    copied: dict[str, Any] = copy_json(message)
    if any(map(_holds_models, copied.values())):
        copied = rebuild(copied, _as_json, subject="the message cannot be stored")
    return copied


def _holds_models(value: Any) -> bool:
    """Whether it is a content block or a tool call that was given as an object, or a list of such."""
    return isinstance(value, Model) or (type(value) is list and any(isinstance(item, Model) for item in value))


def _as_json(value: Any, _: Sequence[Frame]) -> Any:
    return to_dict(value) if isinstance(value, Model) else value


def _says_nothing_else(message: dict[str, Any]) -> bool:
    """Whether a message that answers calls is only that."""
    if message["role"] == "tool":
        return True
    content = message.get("content")
    return isinstance(content, list) and all(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in content
    )
