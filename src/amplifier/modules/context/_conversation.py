"""The conversation in memory: messages in order, with what the view needs to know of each, computed once, and the view.

A stored message is never changed. What modules give and get are copies. No method awaits, so that on one event loop every method
is one step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, final

import attrs

from amplifier._internal.json import LEAVES, Frame, copy_json, rebuild
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
    """Messages in order, and the view of them: all, or what the latest compaction leaves.

    Args:
        chars_per_token: See `ContextOptions`.
        plan_tools: See `ContextOptions`.

    Attributes:
        chars_per_token: As given.
        entries: What is stored; a new list whenever everything is replaced, so that a reader may hold on to the old.
        shown: The entries that can be shown: all but orphans. A new list whenever everything is replaced.
        tokens: What these take, roughly.
        view: What a request shows; ``shown`` itself as long as nothing is compacted.
        view_tokens: What it takes, roughly.
        journal: Every compaction, in order, those that were undone included.
    """

    def __init__(self, chars_per_token: float, plan_tools: Collection[str] = ()) -> None:
        self.chars_per_token: float = chars_per_token
        self._plan_tools = plan_tools
        self.replace(())

    def append(self, message: dict[str, Any]) -> None:
        """Store a message, which belongs to the conversation from here on."""
        position = len(self.entries)
        results = result_ids(message)
        # Ids should be unique over a conversation. Where they are not, a result belongs to the latest call of its id.
        positions = self._call_positions
        answers = (
            tuple(dict.fromkeys(positions[call] for call in results if call in positions))
            if results
            else ()
        )
        role, given = message["role"], message.get("metadata")
        metadata: dict[str, Any] = given if isinstance(given, dict) else {}
        named = metadata.get("source")
        source = named if isinstance(named, str) else ""
        is_orphan = bool(results) and not answers and _says_nothing_else(message)
        is_said = role == "user" and not answers and not is_orphan
        calls = call_names(message) if role == "assistant" else {}
        entry = Entry(
            message=message,
            position=position,
            is_flat=LEAVES.issuperset(map(type, message.values())),
            tokens=count_tokens(message, self.chars_per_token),
            answers=answers,
            part=self._part(position, answers),
            is_orphan=is_orphan,
            is_system=role in SYSTEM_ROLES,
            is_prompt=is_said and source not in NO_PROMPTS,
            is_steering=is_said and source == STEERING,
            is_pinned=metadata.get("pinned") is True,
            is_plan=any(name in self._plan_tools for name in calls.values())
            or any(self.entries[call].is_plan for call in answers),
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
        elif answers and min(answers) < latest.start:  # its call may not be shown yet
            self._make_view()
        else:
            self.view.append(entry)
            self.view_tokens += entry.tokens

    def _part(self, position: int, answers: Sequence[int]) -> tuple[int, ...]:
        """The positions of a call and all its results, which are shown or left out together."""
        if not answers:
            return (
                position,
            )  # a tuple of numbers is nothing that the garbage collector has to look at
        before = sorted({member for call in answers for member in self.entries[call].part})
        part = (*before, position)
        for member in before:
            self.entries[member].part = part
        return part

    def replace(self, messages: Iterable[dict[str, Any]]) -> None:
        """Replace everything by these messages, which belong to the conversation from here on."""
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
        """Replace everything by another conversation, which must not be used any more.

        Thousands of messages take time to go through; this way they can be in a worker thread.
        """
        for name in (
            "entries",
            "shown",
            "view",
            "journal",
            "tokens",
            "view_tokens",
            "_call_positions",
        ):
            setattr(self, name, getattr(other, name))

    # ── compactions ──

    @property
    def latest(self) -> Compaction | None:
        """The compaction that the view follows."""
        return (
            next((made for made in reversed(self.journal) if not made.is_undone), None)
            if self.journal
            else None
        )

    @property
    def is_held(self) -> bool:
        """Whether the latest compaction was undone: the next one waits until nothing else helps."""
        return bool(self.journal) and self.journal[-1].is_undone

    def record(self, number: int, compaction: Compaction) -> None:
        """Put a compaction into the journal, at the end or in place of one."""
        self.journal[number : number + 1] = [self._checked(compaction)]
        self._make_view()

    def restore(self, journal: Iterable[Compaction]) -> None:
        """Take over the journal that belongs to these messages."""
        self.journal = list(map(self._checked, journal))
        self._make_view()

    def _checked(self, made: Compaction) -> Compaction:
        """A record of messages that are not there counts as undone."""
        reach = max(made.start, made.upto, *(position + 1 for position in made.kept))
        return made if reach <= len(self.entries) else attrs.evolve(made, is_undone=True)

    def after(self, compaction: Compaction) -> list[Entry]:
        """The view that a compaction would leave."""
        return shown_after(self.entries, compaction, self.chars_per_token)

    def draft(self, *, budget: int, limit: int, target: int, reserve: int) -> Compaction | None:
        """The compaction by the cheapest tier that comes down to the target, or comes nearest; None if nothing makes the view smaller.

        Args:
            budget: What the view must not exceed, if it can be helped.
            limit: What it should not exceed.
            target: What it should come down to.
            reserve: What a summary or note may take of it.
        """
        latest = attrs.evolve(
            self.latest or Compaction(), before_tokens=self.view_tokens, is_undone=False
        )
        upto = max(latest.upto, recent_from(self.view, target // 2))
        shorter = self.measured(attrs.evolve(latest, tier="results", upto=upto))
        if shorter.after_tokens > target:
            cut = Cut(self.after(shorter), self.chars_per_token)
            found = cut.find(
                latest.start, budget=budget, limit=limit, target=target, reserve=reserve
            )
            if found is not None:
                start, kept, prompt = found
                left = attrs.evolve(
                    shorter, tier="left_out", start=start, kept=kept, prompt=prompt, has_note=True
                )
                made = self.measured(left)
                if made.after_tokens > limit and not made.summary:
                    made = self.measured(attrs.evolve(left, has_note=False))
                return made
        return shorter if shorter.after_tokens < self.view_tokens else None

    def measured(self, compaction: Compaction) -> Compaction:
        """A compaction with the tokens that its view would take."""
        return attrs.evolve(
            compaction, after_tokens=sum(entry.tokens for entry in self.after(compaction))
        )

    def _make_view(self) -> None:
        latest = self.latest
        self.view = self.shown if latest is None else self.after(latest)
        self.view_tokens = sum(entry.tokens for entry in self.view)

    def copy(self) -> list[dict[str, Any]]:
        """Everything that was stored."""
        return copies(self.entries)


def copies(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Copies of stored messages, for others to keep."""
    return [
        entry.message.copy() if entry.is_flat else copy_json(entry.message) for entry in entries
    ]


def require_role(message: Any) -> None:
    """Refuse what is no message.

    Raises:
        ValueError: It is no dict, or has no role.
    """
    if not isinstance(message, dict):
        raise ValueError(
            f"expected a message as a dict with a 'role' such as 'user', got a {type(message).__name__}"
        )
    if not isinstance(message.get("role"), str):
        found = (
            f"the role {message['role']!r}"
            if "role" in message
            else f"the keys {sorted(map(str, message))[:20]!r}"
        )
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
    return isinstance(value, Model) or (
        type(value) is list and any(isinstance(item, Model) for item in value)
    )


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
