"""The conversation in memory, and the view of it that requests contain.

Stored messages are never changed, and modules pass and receive copies. No method awaits, so every
method is atomic on one event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import final

import attrs

from amplifier._internal.json import JSON, LEAVES, Frame, copy_json, rebuild
from amplifier.models import Model, to_dict

from ._compaction import Compaction, Cut, recent_from, shown_after
from ._entries import (
    NO_PROMPTS,
    STEERING,
    SYSTEM_ROLES,
    CallId,
    Entry,
    call_names,
    count_tokens,
    result_ids,
)


@final
class Conversation:
    """Messages in order, and their view, which follows the latest compaction.

    Args:
        chars_per_token: See `ContextOptions`.
        plan_tools: See `ContextOptions`.

    Attributes:
        chars_per_token: Characters per token, for estimates.
        entries: All messages. Replacing them creates a new list, so readers may keep the old one.
        shown: The entries that can be shown, which are all except orphans. Replacing them creates
            a new list.
        tokens: Estimated tokens of ``shown``.
        view: The entries that a request contains. Without a compaction, they are ``shown``.
        view_tokens: Estimated tokens of the view.
        journal: All compactions in order, including undone ones.
    """

    def __init__(self, chars_per_token: float, plan_tools: Collection[str] = ()) -> None:
        self.chars_per_token: float = chars_per_token
        self._plan_tools = plan_tools
        self.replace(())

    def append(self, message: dict[str, JSON]) -> None:
        """Store a message. The caller must not change it afterwards."""
        position = len(self.entries)
        results = result_ids(message)
        # If an id occurs twice, a result belongs to the latest call with the id.
        positions = self._call_positions
        answered = [positions[call] for call in results if call in positions]
        answers = tuple(dict.fromkeys(answered))
        role = message["role"]
        metadata = message.get("metadata")
        if not isinstance(metadata, dict):
            metadata = {}
        source = metadata.get("source")
        if not isinstance(source, str):
            source = ""
        is_orphan = bool(results) and not answers and _has_only_results(message)
        is_user_text = role == "user" and not answers and not is_orphan
        calls = call_names(message) if role == "assistant" else {}
        is_plan_call = any(name in self._plan_tools for name in calls.values())
        entry = Entry(
            message=message,
            position=position,
            is_flat=LEAVES.issuperset(map(type, message.values())),
            tokens=count_tokens(message, self.chars_per_token),
            answers=answers,
            part=self._part(position, answers),
            is_orphan=is_orphan,
            is_system=role in SYSTEM_ROLES,
            is_prompt=is_user_text and source not in NO_PROMPTS,
            is_steering=is_user_text and source == STEERING,
            is_pinned=metadata.get("pinned") is True,
            is_plan=is_plan_call or any(self.entries[call].is_plan for call in answers),
        )
        positions.update(dict.fromkeys(calls, position))
        self.entries.append(entry)
        if entry.is_orphan:
            return
        self.shown.append(entry)
        self.tokens += entry.tokens
        latest = self.latest
        if latest is None:
            self.view_tokens += entry.tokens
        # The view may not show the call of this result yet.
        elif answers and min(answers) < latest.start:
            self._make_view()
        else:
            self.view.append(entry)
            self.view_tokens += entry.tokens

    def _part(self, position: int, answers: Sequence[int]) -> tuple[int, ...]:
        """Return the positions of a call and all its results, which are shown or left out together.

        The garbage collector doesn't need to track the result, because it is a tuple of numbers.
        """
        if not answers:
            return (position,)
        before = sorted({member for call in answers for member in self.entries[call].part})
        part = (*before, position)
        for member in before:
            self.entries[member].part = part
        return part

    def replace(self, messages: Iterable[dict[str, JSON]]) -> None:
        """Replace all messages. The caller must not change the new ones afterwards."""
        self.entries: list[Entry] = []
        self.shown: list[Entry] = []
        self.view: list[Entry] = self.shown
        self.journal: list[Compaction] = []
        self.tokens: int = 0
        self.view_tokens: int = 0
        self._call_positions: dict[CallId, int] = {}
        for message in messages:
            self.append(message)

    def adopt(self, other: Conversation) -> None:
        """Take over the content of another conversation, which must not be used afterwards.

        The other one can be built in a worker thread, because thousands of messages take time.
        """
        names = ("entries", "shown", "view", "journal", "tokens", "view_tokens", "_call_positions")
        for name in names:
            setattr(self, name, getattr(other, name))

    # ── compactions ──

    @property
    def latest(self) -> Compaction | None:
        """The compaction that the view follows, or None."""
        # In the usual case there is no compaction, and this avoids creating a generator.
        if not self.journal:
            return None
        return next((record for record in reversed(self.journal) if not record.is_undone), None)

    @property
    def is_held(self) -> bool:
        """Whether the latest compaction was undone. If so, the next one is delayed until needed."""
        return bool(self.journal) and self.journal[-1].is_undone

    def record(self, number: int, compaction: Compaction) -> None:
        """Write a compaction to the journal. It may replace an earlier record."""
        self.journal[number : number + 1] = [self._checked(compaction)]
        self._make_view()

    def restore(self, journal: Iterable[Compaction]) -> None:
        """Replace the journal with one that was stored with the messages."""
        self.journal = list(map(self._checked, journal))
        self._make_view()

    def _checked(self, record: Compaction) -> Compaction:
        """Return a record, marked as undone if it refers to messages that do not exist."""
        reach = max(record.start, record.upto, *(position + 1 for position in record.kept))
        return record if reach <= len(self.entries) else attrs.evolve(record, is_undone=True)

    def after(self, compaction: Compaction) -> list[Entry]:
        """Return the view after a compaction."""
        return shown_after(self.entries, compaction, self.chars_per_token)

    def draft(self, *, budget: int, limit: int, target: int, reserve: int) -> Compaction | None:
        """Return the cheapest compaction that reaches the target, or the one closest to it.

        The result is None if no compaction makes the view smaller.

        Args:
            budget: Maximum size of the view in tokens. It is exceeded if no view reaches it.
            limit: Size that the view should not exceed.
            target: Size that the view should reach.
            reserve: Part of the target for a summary or a note.
        """
        latest = attrs.evolve(
            self.latest or Compaction(), before_tokens=self.view_tokens, is_undone=False
        )
        upto = max(latest.upto, recent_from(self.view, target // 2))
        shorter = self.measured(attrs.evolve(latest, tier="results", upto=upto))
        if shorter.after_tokens > target:
            cut = Cut(self.after(shorter), self.chars_per_token)
            place = cut.find(
                latest.start, budget=budget, limit=limit, target=target, reserve=reserve
            )
            if place is not None:
                start, kept, prompt = place
                left_out = attrs.evolve(
                    shorter, tier="left_out", start=start, kept=kept, prompt=prompt, has_note=True
                )
                compaction = self.measured(left_out)
                if compaction.after_tokens > limit and not compaction.summary:
                    compaction = self.measured(attrs.evolve(left_out, has_note=False))
                return compaction
        return shorter if shorter.after_tokens < self.view_tokens else None

    def measured(self, compaction: Compaction) -> Compaction:
        """Return a compaction with the token count of its view."""
        tokens = sum(entry.tokens for entry in self.after(compaction))
        return attrs.evolve(compaction, after_tokens=tokens)

    def _make_view(self) -> None:
        latest = self.latest
        self.view = self.shown if latest is None else self.after(latest)
        self.view_tokens = sum(entry.tokens for entry in self.view)

    def copy(self) -> list[dict[str, JSON]]:
        """Return copies of all messages."""
        return copies(self.entries)


def copies(entries: Sequence[Entry]) -> list[dict[str, JSON]]:
    """Return copies of stored messages, which the caller may change."""
    return [
        entry.message.copy() if entry.is_flat else copy_json(entry.message) for entry in entries
    ]


def require_role(message: object) -> None:
    """Raise unless a value is a message.

    Raises:
        ValueError: The value is not a dict, or has no role.
    """
    if not isinstance(message, dict):
        raise ValueError(
            "expected a message as a dict with a 'role' such as 'user', "
            f"got a {type(message).__name__}"
        )
    if not isinstance(message.get("role"), str):
        shown = f"the keys {sorted(map(str, message))[:20]!r}"
        if "role" in message:
            shown = f"the role {message['role']!r}"
        raise ValueError(f"a message needs a 'role' such as 'user', as text; got {shown}")


def checked_copy(message: object) -> dict[str, JSON]:
    """Return a copy of a message for the conversation.

    Raises:
        ValueError: The value is not a message, or cannot be copied (`ModelError`).
    """
    require_role(message)
    copied: dict[str, JSON] = copy_json(message)
    if any(map(_holds_models, copied.values())):
        copied = rebuild(copied, _as_json, subject="the message cannot be stored")
    return copied


def _holds_models(value: object) -> bool:
    """Return whether a value is a model object (e.g. a content block), or a list containing one."""
    if type(value) is list:
        return any(isinstance(item, Model) for item in value)
    return isinstance(value, Model)


def _as_json(value: object, _: Sequence[Frame]) -> object:
    return to_dict(value) if isinstance(value, Model) else value


def _has_only_results(message: dict[str, JSON]) -> bool:
    """Return whether a message contains only tool results."""
    if message["role"] == "tool":
        return True
    content = message.get("content")
    return isinstance(content, list) and all(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in content
    )
