"""Compactions: what a view leaves out, decided cheapest first. Pure: a conversation and a budget in, a record out.

The tiers: old tool outputs are shortened; then old turns are left out, with a summary or a note in their place. Always shown as they are:
system messages, pinned ones, the plan, the prompt of the turn in which the view begins, and the newest part. The first prompt stays,
too, shortened if it is long. A call and all its results are shown or left out together.

A record contains all that a view needs beside the stored conversation. So the view stays the same, byte for byte, while messages are
added, until the next compaction; and undoing one is forgetting its record.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from ._entries import Entry
from ._shortening import shorten_prompt, shorten_results
from ._token_estimate import count_tokens

Tier: TypeAlias = Literal["results", "summary", "left_out"]

SOURCE = "compaction"
"""The ``source``, in the metadata, of the message that a view has in place of those it leaves out."""

_NOTE = "[earlier messages, up to number {}, left out]"
_SUMMARY = "[earlier messages, up to number {}, left out. What was in those up to number {}:]\n{}"


@attrs.frozen(kw_only=True)
class Compaction:
    """One compaction, as the journal keeps it.

    Attributes:
        tier: The last tier that was needed.
        start: Messages before this position are left out, but for those that have to stay.
        kept: Positions before ``start`` of the messages that stay.
        prompt: The one of these that began the turn in which the view begins.
        upto: Tool outputs before this position are shortened.
        has_note: A message in the view states what is left out.
        summary: What a model wrote about messages that are left out.
        summarised: It is about those before this position.
        before_tokens: What the view took before, roughly.
        after_tokens: What it took then.
        is_asked: Someone asked for it, or for one before it: it is followed where there would be room for everything, too.
        is_undone: It is no longer in force.
    """

    tier: Tier = "results"
    start: int = 0
    kept: tuple[int, ...] = ()
    prompt: int = -1
    upto: int = 0
    has_note: bool = False
    summary: str = ""
    summarised: int = 0
    before_tokens: int = 0
    after_tokens: int = 0
    is_asked: bool = False
    is_undone: bool = False

    def note(self) -> str:
        """What the view shows in place of what it leaves out."""
        if self.summary:
            return _SUMMARY.format(self.start, self.summarised, self.summary)
        return _NOTE.format(self.start)


class Compactable(Protocol):
    """What is needed of a conversation."""

    chars_per_token: float
    view: list[Entry]
    view_tokens: int

    @property
    def latest(self) -> Compaction | None:
        """The compaction that the view follows."""

    def after(self, compaction: Compaction) -> list[Entry]:
        """The view that a compaction would leave."""


def shown_after(entries: Sequence[Entry], made: Compaction, chars_per_token: float) -> list[Entry]:
    """The view that a compaction leaves of a conversation, with what came after it."""
    # A result may come after its call was left out: then the call comes back.
    late = {member for entry in entries[made.start :] for member in entry.part if member < made.start}
    view = [_kept(entries[position], made, chars_per_token) for position in sorted({*made.kept, *late})]
    if made.has_note:
        message = {"role": "user", "content": made.note(), "metadata": {"source": SOURCE}}
        # Behind the first prompt and before that of the turn in which the view goes on.
        place = next((at for at, entry in enumerate(view) if entry.position == made.prompt), len(view))
        if not any(entry.is_prompt for entry in view[:place]):
            place = len(view)
        view.insert(place, Entry(message=message, tokens=count_tokens(message, chars_per_token)))
    upto = max(made.start, made.upto)
    view += [shorten_results(entry, chars_per_token) for entry in entries[made.start : upto] if not entry.is_orphan]
    view += [entry for entry in entries[upto:] if not entry.is_orphan]
    return view


def _kept(entry: Entry, made: Compaction, chars_per_token: float) -> Entry:
    if entry.is_prompt and not entry.is_pinned and entry.position != made.prompt:
        return shorten_prompt(entry, chars_per_token)
    return shorten_results(entry, chars_per_token)


def draft(conversation: Compactable, *, budget: int, limit: int, target: int, reserve: int) -> Compaction | None:
    """The compaction by the cheapest tier that comes down to the target, or comes nearest; None if nothing makes the view smaller.

    Args:
        conversation: As it is now.
        budget: What the view must not exceed, if it can be helped.
        limit: What it should not exceed.
        target: What it should come down to.
        reserve: What a summary or note may take of it.
    """
    before = conversation.view_tokens
    latest = attrs.evolve(conversation.latest or Compaction(), before_tokens=before, is_undone=False)
    recent = _recent(conversation.view, target // 2)
    shorter, tokens = _measured(conversation, attrs.evolve(latest, tier="results", upto=max(latest.upto, recent)))
    if tokens > target:
        cut = _Cut(conversation.after(shorter), conversation.chars_per_token)
        found = cut.find(latest.start, budget=budget, limit=limit, target=target, reserve=reserve)
        if found is not None:
            start, kept, prompt = found
            left = attrs.evolve(shorter, tier="left_out", start=start, kept=kept, prompt=prompt, has_note=True)
            made, tokens = _measured(conversation, left)
            if tokens > limit and not made.summary:
                made, tokens = _measured(conversation, attrs.evolve(left, has_note=False))
            return made
    return shorter if tokens < before else None


def _measured(conversation: Compactable, made: Compaction) -> tuple[Compaction, int]:
    tokens = sum(entry.tokens for entry in conversation.after(made))
    return attrs.evolve(made, after_tokens=tokens), tokens


def _recent(view: Sequence[Entry], room: int) -> int:
    """Where the newest messages begin whose tool outputs stay whole: those that fit, and the newest part."""
    first = len(view)
    for at in range(len(view) - 1, -1, -1):
        room -= view[at].tokens
        if room < 0:
            break
        first = at
    if first == len(view):
        return view[-1].part[0] if view else 0
    return min(view[first].position, view[-1].part[0])


class _Cut:
    """Where a smaller view may begin, and what it would take."""

    def __init__(self, view: Sequence[Entry], chars_per_token: float) -> None:
        shown = [entry for entry in view if entry.position >= 0]
        self._spoken = [entry.position for entry in shown if not entry.is_system]
        self._prompts = [entry.position for entry in shown if entry.is_prompt]
        # A pinned one stays anyway, and what the turn was begun by may be before it.
        self._begun = [entry.position for entry in shown if entry.is_prompt and not entry.is_pinned]
        self._steering = [entry.position for entry in shown if entry.is_steering]
        self._full = {entry.position: entry for entry in shown}
        self._tokens = {entry.position: entry.tokens for entry in shown}
        stays = {member for entry in shown if entry.is_pinned for member in entry.part}
        stays.update(next((entry.part for entry in reversed(shown) if entry.is_plan), ()))
        stays.update(entry.position for entry in shown if entry.is_system)
        newest = self._full[self._spoken[-1]].part if self._spoken else ()
        for first in self._prompts[:1]:
            if first not in stays and first not in newest:
                self._tokens[first] = shorten_prompt(self._full[first], chars_per_token).tokens
            stays.add(first)
        parts = {entry.part for entry in shown if entry.position not in stays}
        self._stays = stays
        self._movable = sorted(parts - {newest}, key=itemgetter(-1))

    def find(
        self, first: int, *, budget: int, limit: int, target: int, reserve: int
    ) -> tuple[int, tuple[int, ...], int] | None:
        """The new start, not before the first, what stays before it, and the prompt of its turn; None if nothing can be left out."""
        left = sum(self._tokens.values())
        least = left - sum(map(self._size, self._movable))
        room = next((each for each in (limit, budget) if least <= each), 0)
        goal = max(target, (least + room) // 2) - reserve if room else 0
        start, prompt = -1, -1
        for part in self._movable:
            left -= self._size(part)
            start = max(first, part[-1] + 1)  # what had stayed until now may be before
            prompt = self._prompt_before(start)
            if left + sum(map(self._more, self._asked(prompt, start))) <= goal:
                break
        if start < 0:
            return None
        kept = {position for position in self._stays if self._full[position].part[-1] < start}
        return start, tuple(sorted({*kept, *self._asked(prompt, start)})), prompt

    def _size(self, part: Sequence[int]) -> int:
        return sum(self._tokens.get(position, 0) for position in part)

    def _asked(self, prompt: int, start: int) -> list[int]:
        """A prompt, and the latest message of the user in its turn before the view begins."""
        if prompt < 0:
            return []
        before = bisect.bisect_left(self._steering, start)
        return [prompt, *(said for said in self._steering[max(before - 1, 0) : before] if said > prompt)]

    def _more(self, asked: int) -> int:
        """What a message takes beyond what is shown of it anyway."""
        return self._full[asked].tokens - (self._tokens[asked] if asked in self._stays else 0)

    def _prompt_before(self, start: int) -> int:
        """The prompt of the turn in which the view would begin; -1 if the view begins with one, or there is none."""
        begins = bisect.bisect_left(self._spoken, start)
        before = bisect.bisect_left(self._begun, start)
        if begins < len(self._spoken) and self._spoken[begins] in self._begun[before : before + 1]:
            return -1
        return self._begun[before - 1] if before else -1


def as_dict(made: Compaction) -> dict[str, Any]:
    """A record as JSON."""
    return {**attrs.asdict(made), "kept": list(made.kept)}


def from_record(record: dict[str, Any]) -> Compaction:
    """Read what `as_dict` wrote; what a later release added is left out."""
    names = {field.name for field in attrs.fields(Compaction)}
    known = {name: value for name, value in record.items() if name in names}
    return Compaction(**{**known, "kept": tuple(known.get("kept", ()))})
