"""Selects the messages that a compacted view shows. Pure: positions in, positions out.

A view is made of system messages, wherever they are; of the newest part of the conversation, cut so that no tool call is
separated from its results; and of the prompt that began the turn in which the cut falls, so that the model still
knows what it was asked. The cut moves in steps: the beginning of the view stays the same over many requests.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeAlias

from ._conversation import Entry

_Part: TypeAlias = list[int]
"""Positions of messages that are shown or left out together: one, or a call with all its results."""


def select_messages(entries: Sequence[Entry], *, budget: int, limit: int, target: int) -> list[int]:
    """The positions of the messages to show, in order.

    Args:
        entries: The conversation.
        budget: What the view must not exceed, if it can be helped.
        limit: What it should not exceed.
        target: What it should come down to when something has to go.

    Returns:
        At least the system messages, the newest part and its prompt; these may exceed the budget.
    """
    system = [position for position, entry in enumerate(entries) if entry.is_system]
    parts = _parts(entries)
    if not parts:
        return system
    cut = _Cut(entries, parts, sum(entries[position].tokens for position in system))
    first = cut.find(budget=budget, limit=limit, target=target)
    shown = [position for part in parts[first:] for position in part]
    prompt = cut.prompt_before(first)
    return sorted([*system, *shown, *([] if prompt is None else [prompt])])


def _parts(entries: Sequence[Entry]) -> list[_Part]:
    """Everything but system messages and orphans, in parts; the part with the newest message is the last."""
    parts: list[_Part] = []
    part_at: list[_Part] = []
    for position, entry in enumerate(entries):
        part = [position]
        if not (entry.is_system or entry.is_orphan):
            if entry.answers:
                part = _joined([part_at[call] for call in entry.answers], part_at)
                part.append(position)
            else:
                parts.append(part)
        part_at.append(part)
    # Joined parts are empty; results may have come after messages that began later.
    return sorted(filter(None, parts), key=itemgetter(-1))


def _joined(parts: list[_Part], part_at: list[_Part]) -> _Part:
    """The one part that these become; usually there is only one, unless a message has results of several answers."""
    first = min(parts)
    for other in parts:
        if other is not first:
            for position in other:
                part_at[position] = first
            first.extend(other)
            first.sort()
            other.clear()
    return first


class _Cut:
    """Where the shown parts may begin, and what each such view would take."""

    def __init__(self, entries: Sequence[Entry], parts: Sequence[_Part], system_tokens: int) -> None:
        self._entries = entries
        self._system_tokens = system_tokens
        self._prompts = [position for position, entry in enumerate(entries) if entry.is_prompt]
        tokens = (sum(entries[position].tokens for position in part) for part in parts)
        self._left_out = [0, *itertools.accumulate(tokens)]
        # The first position shown if the view begins with this part: a part reaches back to its call.
        starts = itertools.accumulate((part[0] for part in reversed(parts)), min)
        self._starts = list(starts)[::-1]

    def prompt_before(self, first: int) -> int | None:
        """The prompt of the turn in which the view would begin, if the view does not begin with one."""
        start = self._starts[first]
        if self._entries[start].is_prompt:
            return None
        before = bisect.bisect_left(self._prompts, start)
        return self._prompts[before - 1] if before else None

    def size(self, first: int) -> int:
        prompt = self.prompt_before(first)
        asked = 0 if prompt is None else self._entries[prompt].tokens
        return self._system_tokens + self._left_out[-1] - self._left_out[first] + asked

    def find(self, *, budget: int, limit: int, target: int) -> int:
        last = len(self._starts) - 1
        least = self.size(last)
        available = limit if least <= limit else budget
        excess = self._system_tokens + self._left_out[-1] - available
        if excess <= 0:
            return 0
        step = max(1, available - max(target, least))
        goal = -(-excess // step) * step
        first = min(bisect.bisect_left(self._left_out, goal), last)
        while first < last and self.size(first) > available:
            first += 1
        return first
