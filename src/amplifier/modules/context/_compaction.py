"""Compactions: what a view leaves out or shortens, decided cheapest first. Pure: a conversation and a budget in, a record out.

The tiers: old tool outputs are shortened; then old turns are left out, with a summary or a note in their place. Always shown as they are:
system messages, pinned ones, the plan, the prompt of the turn in which the view begins, and the newest part. The first prompt stays,
too, shortened if it is long. A call and all its results are shown or left out together.

A record contains all that a view needs beside the stored conversation. So the view stays the same, byte for byte, while messages are
added, until the next compaction; and undoing one is forgetting its record.

Messages that must all be shown and do not fit the budget are cut: each keeps its beginning and its end around a note of how much is
missing. The order: tool results; then the text of everything but the newest message, the newest prompt, pinned and system messages;
then that of pinned ones; then all of these down to the bare note; then the rest, down to the bare note at last; then pictures, thoughts,
blocks of unknown kind and fields beyond the contract. Roles, ids, names and the shape of tool calls stay whatever happens, so a budget
below that skeleton is exceeded.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._internal.json import copy_json

from ._entries import CALL_BLOCKS, MEDIA, RESULT_BLOCKS, SYSTEM_ROLES, Entry, count_tokens

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


def shown_after(entries: Sequence[Entry], made: Compaction, chars_per_token: float) -> list[Entry]:
    """The view that a compaction leaves of a conversation, with what came after it."""
    # A result may come after its call was left out: then the call comes back.
    late = {
        member for entry in entries[made.start :] for member in entry.part if member < made.start
    }
    view = [
        _kept(entries[position], made, chars_per_token) for position in sorted({*made.kept, *late})
    ]
    if made.has_note:
        message = {"role": "user", "content": made.note(), "metadata": {"source": SOURCE}}
        # Behind the first prompt and before that of the turn in which the view goes on.
        place = next(
            (at for at, entry in enumerate(view) if entry.position == made.prompt), len(view)
        )
        if not any(entry.is_prompt for entry in view[:place]):
            place = len(view)
        view.insert(place, Entry(message=message, tokens=count_tokens(message, chars_per_token)))
    upto = max(made.start, made.upto)
    view += [
        shorten_results(entry, chars_per_token)
        for entry in entries[made.start : upto]
        if not entry.is_orphan
    ]
    view += [entry for entry in entries[upto:] if not entry.is_orphan]
    return view


def _kept(entry: Entry, made: Compaction, chars_per_token: float) -> Entry:
    if entry.is_prompt and not entry.is_pinned and entry.position != made.prompt:
        return shorten_prompt(entry, chars_per_token)
    return shorten_results(entry, chars_per_token)


def recent_from(view: Sequence[Entry], room: int) -> int:
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


class Cut:
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
        return [
            prompt,
            *(said for said in self._steering[max(before - 1, 0) : before] if said > prompt),
        ]

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


# ── shortening ───────────────────────────────────────────────────────────────────────────────────

_LEAST_TEXT = 400
"""Characters that stay of a text in every stage but the last ones, and of old tool outputs."""

_FIRST_PROMPT = 2000
"""Characters that stay of the text of the first prompt when it is old."""

_REFINEMENTS = 6

_CONTRACT_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_WHOLE_KEYS = frozenset({"role", "type", "id", "name", "tool", "tool_call_id", "tool_use_id"})
_TEXT_BLOCKS = CALL_BLOCKS | RESULT_BLOCKS | {"text"}


class _Rank(IntEnum):
    """The order in which texts are cut."""

    RESULT = 0
    OLDER = 1
    PINNED = 2
    LAST = 3


@attrs.frozen
class _Stage:
    """How far to go: cut texts up to this rank, to no less than this many characters; what else to leave out; how notes begin."""

    rank: _Rank
    least: int
    bare: bool = False
    label: str = ""


_STAGES = (
    _Stage(_Rank.RESULT, _LEAST_TEXT),
    _Stage(_Rank.OLDER, _LEAST_TEXT),
    _Stage(_Rank.PINNED, _LEAST_TEXT),
    _Stage(_Rank.PINNED, 0),
    _Stage(_Rank.LAST, _LEAST_TEXT),
    _Stage(_Rank.LAST, 0),
    _Stage(_Rank.LAST, 0, bare=True),
)


def shorten_results(entry: Entry, chars_per_token: float) -> Entry:
    """An old message with its tool outputs cut; the notes name it, so that it can be read again."""
    if not entry.answers or entry.is_pinned or entry.is_plan:
        return entry
    return _cut_entry(entry, _Rank.RESULT, _LEAST_TEXT, chars_per_token)


def shorten_prompt(entry: Entry, chars_per_token: float) -> Entry:
    """An old prompt, cut if it is long, with notes in place of what is attached to it."""
    content = entry.message.get("content")
    if isinstance(content, list):
        label = f"message {entry.position + 1}: "
        blocks = [
            _note_of_block(block, kind, label) if (kind := _kind(block)) in MEDIA else block
            for block in content
        ]
        if blocks != content:
            message = {**entry.message, "content": blocks}
            entry = attrs.evolve(
                entry, message=message, tokens=count_tokens(message, chars_per_token), is_flat=False
            )
    return _cut_entry(entry, _Rank.LAST, _FIRST_PROMPT, chars_per_token)


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _cut_entry(entry: Entry, rank: _Rank, most: int, chars_per_token: float) -> Entry:
    if entry.tokens * chars_per_token <= most:
        return entry
    stage = _Stage(rank, most, label=f"message {entry.position + 1}: ")
    message = _cut_message(entry.message, stage, most, _Rank.OLDER)
    tokens = count_tokens(message, chars_per_token)
    return (
        attrs.evolve(entry, message=message, tokens=tokens, is_flat=False)
        if tokens < entry.tokens
        else entry
    )


def shorten(
    entries: Sequence[Entry], budget: int, chars_per_token: float
) -> tuple[list[dict[str, Any]], int]:
    """Copies of all these messages, cut to fit.

    Args:
        entries: In order; the last one counts as the newest.
        budget: In tokens.
        chars_per_token: See `ContextOptions`.

    Returns:
        The messages, as long as the budget allows, and the tokens they take. Those exceed the budget only if nothing
        is left to cut.
    """

    def attempt(stage: _Stage, most: int) -> tuple[list[dict[str, Any]], int]:
        cut = [
            _cut_message(entry.message, stage, most, rank)
            for entry, rank in zip(entries, ranks, strict=True)
        ]
        return cut, sum(count_tokens(message, chars_per_token) for message in cut)

    prompts = [at for at, entry in enumerate(entries) if entry.is_prompt]
    steering = [at for at, entry in enumerate(entries) if entry.is_steering]
    ranks = [_Rank.PINNED if entry.is_pinned else _Rank.OLDER for entry in entries]
    for at in (len(entries) - 1, *prompts[-1:], *steering[-1:]):
        ranks[at] = _Rank.LAST
    shortest: tuple[list[dict[str, Any]], int] = ([], 0)
    for stage in _STAGES:
        shortest = attempt(stage, stage.least)
        if shortest[1] <= budget:
            return _longest(functools.partial(attempt, stage), stage.least, shortest, budget)
    return shortest


def _longest(
    attempt: Callable[[int], tuple[list[dict[str, Any]], int]],
    least: int,
    found: tuple[list[dict[str, Any]], int],
    budget: int,
) -> tuple[list[dict[str, Any]], int]:
    """The most text per place that still fits: doubled while it does, then narrowed down a little."""
    low, high = least, max(2 * least, 64)
    while (tried := attempt(high))[1] <= budget:
        if tried == found:  # nothing is left to lengthen
            return tried
        low, high, found = high, high * 2, tried
    for _ in range(_REFINEMENTS):
        middle = (low + high) // 2
        if middle == low:
            break
        tried = attempt(middle)
        if tried[1] <= budget:
            low, found = middle, tried
        else:
            high = middle
    return found


def _cut_message(message: dict[str, Any], stage: _Stage, most: int, rank: _Rank) -> dict[str, Any]:
    role = message["role"]
    if role in SYSTEM_ROLES:
        rank = _Rank.LAST
    elif role == "tool":
        rank = _Rank.RESULT
    cut: dict[str, Any] = {
        name: value for name, value in message.items() if not stage.bare or name in _CONTRACT_FIELDS
    }
    content = message.get("content")
    if isinstance(content, list):
        cut["content"] = _cut_blocks(content, stage, most, rank)
    elif content is not None and rank <= stage.rank:
        cut["content"] = _cut_value(content, most, stage.label)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple) and rank <= stage.rank:
        cut["tool_calls"] = [_cut_call(call, most) for call in calls]
    return copy_json(cut)  # type: ignore[no-any-return]


def _cut_blocks(blocks: list[Any], stage: _Stage, most: int, rank: _Rank) -> list[Any]:
    kept: list[Any] = []
    for block in blocks:
        kind = _kind(block)
        if not isinstance(kind, str) or kind not in _TEXT_BLOCKS:
            # A signed thought or a picture is of no use in part.
            kept += (
                [_note_of_block(block, kind)]
                if stage.bare and not isinstance(block, str)
                else [block]
            )
        elif (_Rank.RESULT if kind in RESULT_BLOCKS else rank) <= stage.rank:
            kept.append(_cut_value(block, most, stage.label))
        else:
            kept.append(block)
    return kept


def _note_of_block(block: Any, kind: Any, label: str = "") -> dict[str, Any]:
    shown = kind[:40] if isinstance(kind, str) else type(block).__name__
    note = {"type": "text", "text": f"[{label}{shown} left out]"}
    return block if count_tokens(block, 1) <= count_tokens(note, 1) else note


def _cut_call(call: Any, most: int) -> Any:
    """Arguments may be text that holds JSON: cut inside it, or the provider could not read it."""
    if not isinstance(call, dict):
        return call
    cut = {name: value for name, value in call.items() if name not in ("arguments", "function")}
    for name in ("arguments", "function"):
        if name not in call:
            continue
        value = call[name]
        if name == "function" and isinstance(value, dict):
            cut[name] = _cut_call(value, most)
        elif isinstance(value, str):
            cut[name] = _cut_json_text(value, most)
        else:
            cut[name] = _cut_value(value, most)
    return {name: cut[name] for name in call}


def _cut_json_text(text: str, most: int) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return cut_text(text, most)
    cut = _cut_value(value, most)
    return text if cut == value else json.dumps(cut, ensure_ascii=False)


def _cut_value(value: Any, most: int, label: str = "", depth: int = 0) -> Any:
    """Every text inside, cut; ids and names are left whole."""
    if isinstance(value, str):
        return cut_text(value, most, label)
    if depth > 50:
        return value
    if isinstance(value, dict):
        if depth and (kind := value.get("type")) in MEDIA:  # in a result it is of no use in part
            return (
                value
                if count_tokens(value, 1) <= max(most, _LEAST_TEXT)
                else _note_of_block(value, kind)
            )
        return {
            key: inner
            if depth == 0 and key in _WHOLE_KEYS
            else _cut_value(inner, most, label, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cut_value(inner, most, label, depth + 1) for inner in value]
    return value


def cut_text(text: str, most: int, label: str = "") -> str:
    """The beginning and the end of a text, `most` characters together, around a note of what is missing, with a label.

    A text that the note would not make shorter comes back whole.
    """
    missing = len(text) - most
    if missing <= 0:
        return text
    note = f"[{label}{missing} characters left out]"
    if most:
        note = f"\n{note}\n"
    if len(note) >= missing:
        return text
    tail = most // 3
    return f"{text[: most - tail]}{note}{text[len(text) - tail :]}"
