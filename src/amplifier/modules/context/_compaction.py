"""Pure functions for compactions: from entries and a budget to a record or a view."""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Literal, TypeAlias

import attrs

from amplifier._internal.json import JSON, copy_json

from ._entries import CALL_BLOCKS, MEDIA, RESULT_BLOCKS, SYSTEM_ROLES, Entry, count_tokens

Tier: TypeAlias = Literal["results", "summary", "left_out"]

# The ``source`` in the metadata of the message that replaces those missing from a view.
SOURCE = "compaction"

_NOTE = "[earlier messages, up to number {}, left out]"
_SUMMARY = "[earlier messages, up to number {}, left out. What was in those up to number {}:]\n{}"


# The cheapest tier comes first: old tool outputs are shortened. Next, old turns are left out, with
# a summary or a note in their place. System messages, pinned messages, the plan, the prompt of the
# turn in which the view begins, and the newest part are always shown unchanged. The first prompt is
# always shown as well, but shortened if it is long. A call and all its results are shown or left
# out together.
#
# The record and the stored conversation determine the view. So until the next compaction, the view
# stays the same, byte for byte, while messages are added to it. The record of a compaction that was
# undone is ignored.


@attrs.frozen(kw_only=True)
class Compaction:
    """One compaction, as the journal stores it.

    Attributes:
        tier: The last tier that was needed.
        start: Position before which messages are left out, except those in ``kept``.
        kept: Positions before ``start`` of the messages that are shown.
        prompt: Position in ``kept`` of the prompt of the turn in which the view begins, or -1.
        upto: Position before which tool outputs are shortened.
        has_note: Whether a message in the view reports the messages that are left out.
        summary: Summary of left out messages by a model, or an empty text.
        summarised: Position before which the summary covers the messages.
        before_tokens: Estimated tokens of the view before the compaction.
        after_tokens: Estimated tokens of the view after it.
        is_asked: Whether this compaction or an earlier one was requested. If so, the view follows
            it even if everything would fit.
        is_undone: Whether the compaction was undone.
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
        """Return the text that replaces the left out messages."""
        if self.summary:
            return _SUMMARY.format(self.start, self.summarised, self.summary)
        return _NOTE.format(self.start)


def shown_after(
    entries: Sequence[Entry], compaction: Compaction, chars_per_token: float
) -> list[Entry]:
    """Return the view of a conversation after a compaction, including later messages."""
    start = compaction.start
    # If a result arrives after its call has been left out, the call is shown again.
    late = {member for entry in entries[start:] for member in entry.part if member < start}
    view = [
        _kept(entries[position], compaction, chars_per_token)
        for position in sorted({*compaction.kept, *late})
    ]
    if compaction.has_note:
        message = {"role": "user", "content": compaction.note(), "metadata": {"source": SOURCE}}
        # The note comes after the first prompt, and before the prompt of the turn in which the view
        # begins.
        prompts = (at for at, entry in enumerate(view) if entry.position == compaction.prompt)
        place = next(prompts, len(view))
        if not any(entry.is_prompt for entry in view[:place]):
            place = len(view)
        view.insert(place, Entry(message=message, tokens=count_tokens(message, chars_per_token)))
    upto = max(start, compaction.upto)
    view += [
        shorten_results(entry, chars_per_token)
        for entry in entries[start:upto]
        if not entry.is_orphan
    ]
    view += [entry for entry in entries[upto:] if not entry.is_orphan]
    return view


def _kept(entry: Entry, compaction: Compaction, chars_per_token: float) -> Entry:
    if entry.is_prompt and not entry.is_pinned and entry.position != compaction.prompt:
        return shorten_prompt(entry, chars_per_token)
    return shorten_results(entry, chars_per_token)


def recent_from(view: Sequence[Entry], room: int) -> int:
    """Return the position of the first message with tool outputs that stay whole.

    Outputs stay whole in the newest messages that fit into ``room`` tokens, and at least in the
    newest part.
    """
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
    """The search for the start of a smaller view."""

    def __init__(self, view: Sequence[Entry], chars_per_token: float) -> None:
        shown = [entry for entry in view if entry.position >= 0]
        self._spoken = [entry.position for entry in shown if not entry.is_system]
        self._prompts = [entry.position for entry in shown if entry.is_prompt]
        # Pinned prompts are shown anyway, and the prompt of the turn may precede one.
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
        """Find the new start of the view.

        Args:
            first: The earliest possible start.
            budget: Maximum size of the view in tokens. It is exceeded if no start reaches it.
            limit: Size that the view should not exceed.
            target: Size that the view should reach.
            reserve: Part of the target for a summary or a note.

        Returns:
            The start, the positions that are kept before it, and the prompt of its turn or -1.
            None if nothing can be left out.
        """
        left = sum(self._tokens.values())
        minimum = left - sum(map(self._size, self._movable))
        room = next((size for size in (limit, budget) if minimum <= size), 0)
        goal = max(target, (minimum + room) // 2) - reserve if room else 0
        start, prompt = -1, -1
        for part in self._movable:
            left -= self._size(part)
            # A message that has been kept so far may precede the first position.
            start = max(first, part[-1] + 1)
            prompt = self._prompt_before(start)
            if left + sum(map(self._extra_size, self._user_texts(prompt, start))) <= goal:
                break
        if start < 0:
            return None
        kept = {position for position in self._stays if self._full[position].part[-1] < start}
        return start, tuple(sorted({*kept, *self._user_texts(prompt, start)})), prompt

    def _size(self, part: Sequence[int]) -> int:
        return sum(self._tokens.get(position, 0) for position in part)

    def _user_texts(self, prompt: int, start: int) -> list[int]:
        """Return a prompt, and the user's latest message in that turn before the start."""
        if prompt < 0:
            return []
        before = bisect.bisect_left(self._steering, start)
        latest = self._steering[max(before - 1, 0) : before]
        return [prompt, *(position for position in latest if position > prompt)]

    def _extra_size(self, position: int) -> int:
        """Return the tokens of a message beyond the part that is shown anyway."""
        shown = self._tokens[position] if position in self._stays else 0
        return self._full[position].tokens - shown

    def _prompt_before(self, start: int) -> int:
        """Return the prompt of the turn in which the view would begin.

        It is -1 if the view begins with a prompt, or if there is none.
        """
        begins = bisect.bisect_left(self._spoken, start)
        before = bisect.bisect_left(self._begun, start)
        if begins < len(self._spoken) and self._spoken[begins] in self._begun[before : before + 1]:
            return -1
        return self._begun[before - 1] if before else -1


def as_dict(compaction: Compaction) -> dict[str, JSON]:
    """Return a compaction as a JSON record."""
    return {**attrs.asdict(compaction), "kept": list(compaction.kept)}


def from_record(record: dict[str, JSON]) -> Compaction:
    """Read a record from `as_dict`. Fields that a later release added are ignored."""
    names = {field.name for field in attrs.fields(Compaction)}
    known = {name: value for name, value in record.items() if name in names}
    return Compaction(**{**known, "kept": tuple(known.get("kept", ()))})


# ── shortening ───────────────────────────────────────────────────────────────────────────────────
# If messages that must all be shown do not fit the budget, they are cut. Each keeps its beginning
# and its end around a note with the number of missing characters. Tool results are cut first, then
# the text of all messages except the newest message, the newest prompt, and pinned and system
# messages, and then the text of pinned messages. Next, all of these are cut down to the bare note,
# and after them the rest. Finally, pictures, thoughts, blocks of unknown kinds and fields beyond
# the contract are left out. Roles, ids, names and the structure of tool calls always stay. So a
# budget too small for these is exceeded.

# The number of characters to keep of a text, in all but the last stages, and of old tool outputs.
_MIN_TEXT = 400

# The number of characters to keep of an old first prompt.
_FIRST_PROMPT = 2000

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
    """A stage of shortening.

    Attributes:
        rank: The highest rank of the texts to cut.
        min_length: The minimum number of characters to keep of a text.
        bare: Whether to leave out pictures, thoughts and fields beyond the contract.
        label: Beginning of the notes.
    """

    rank: _Rank
    min_length: int
    bare: bool = False
    label: str = ""


_STAGES = (
    _Stage(_Rank.RESULT, _MIN_TEXT),
    _Stage(_Rank.OLDER, _MIN_TEXT),
    _Stage(_Rank.PINNED, _MIN_TEXT),
    _Stage(_Rank.PINNED, 0),
    _Stage(_Rank.LAST, _MIN_TEXT),
    _Stage(_Rank.LAST, 0),
    _Stage(_Rank.LAST, 0, bare=True),
)


def shorten_results(entry: Entry, chars_per_token: float) -> Entry:
    """Cut the tool outputs of an old message. The notes identify it, so it can be read again."""
    if not entry.answers or entry.is_pinned or entry.is_plan:
        return entry
    return _cut_entry(entry, _Rank.RESULT, _MIN_TEXT, chars_per_token)


def shorten_prompt(entry: Entry, chars_per_token: float) -> Entry:
    """Cut an old prompt if it is long, and replace its attachments with notes."""
    content = entry.message.get("content")
    if isinstance(content, list):
        label = f"message {entry.position + 1}: "
        blocks = [
            _note_of_block(block, kind, label) if (kind := _kind(block)) in MEDIA else block
            for block in content
        ]
        if blocks != content:
            message = {**entry.message, "content": blocks}
            tokens = count_tokens(message, chars_per_token)
            entry = attrs.evolve(entry, message=message, tokens=tokens, is_flat=False)
    return _cut_entry(entry, _Rank.LAST, _FIRST_PROMPT, chars_per_token)


def _kind(block: object) -> JSON:
    return block.get("type") if isinstance(block, dict) else None


def _cut_entry(entry: Entry, rank: _Rank, length: int, chars_per_token: float) -> Entry:
    if entry.tokens * chars_per_token <= length:
        return entry
    stage = _Stage(rank, length, label=f"message {entry.position + 1}: ")
    message = _cut_message(entry.message, stage, length, _Rank.OLDER)
    tokens = count_tokens(message, chars_per_token)
    if tokens >= entry.tokens:
        return entry
    return attrs.evolve(entry, message=message, tokens=tokens, is_flat=False)


def shorten(
    entries: Sequence[Entry], budget: int, chars_per_token: float
) -> tuple[list[dict[str, JSON]], int]:
    """Return copies of messages that are cut to fit into a budget.

    Args:
        entries: The messages in order. The last one counts as the newest.
        budget: Maximum number of tokens.
        chars_per_token: See `ContextOptions`.

    Returns:
        The messages, with as much text as the budget allows, and their tokens. They exceed the
        budget only if nothing is left to cut.
    """

    def attempt(stage: _Stage, length: int) -> tuple[list[dict[str, JSON]], int]:
        cut = [
            _cut_message(entry.message, stage, length, rank)
            for entry, rank in zip(entries, ranks, strict=True)
        ]
        return cut, sum(count_tokens(message, chars_per_token) for message in cut)

    prompts = [at for at, entry in enumerate(entries) if entry.is_prompt]
    steering = [at for at, entry in enumerate(entries) if entry.is_steering]
    ranks = [_Rank.PINNED if entry.is_pinned else _Rank.OLDER for entry in entries]
    for at in (len(entries) - 1, *prompts[-1:], *steering[-1:]):
        ranks[at] = _Rank.LAST
    shortest: tuple[list[dict[str, JSON]], int] = ([], 0)
    for stage in _STAGES:
        shortest = attempt(stage, stage.min_length)
        if shortest[1] <= budget:
            return _longest(functools.partial(attempt, stage), stage.min_length, shortest, budget)
    return shortest


def _longest(
    attempt: Callable[[int], tuple[list[dict[str, JSON]], int]],
    low: int,
    shortest: tuple[list[dict[str, JSON]], int],
    budget: int,
) -> tuple[list[dict[str, JSON]], int]:
    """Return the result with the longest texts that fits.

    The length is doubled while the result fits, and then narrowed down in a few steps.
    """
    best, high = shortest, max(2 * low, 64)
    while (result := attempt(high))[1] <= budget:
        # No text is left to lengthen.
        if result == best:
            return result
        low, high, best = high, high * 2, result
    for _ in range(_REFINEMENTS):
        middle = (low + high) // 2
        if middle == low:
            break
        result = attempt(middle)
        if result[1] <= budget:
            low, best = middle, result
        else:
            high = middle
    return best


def _cut_message(
    message: dict[str, JSON], stage: _Stage, length: int, rank: _Rank
) -> dict[str, JSON]:
    role = message["role"]
    if role in SYSTEM_ROLES:
        rank = _Rank.LAST
    elif role == "tool":
        rank = _Rank.RESULT
    cut: dict[str, JSON] = {
        name: value for name, value in message.items() if not stage.bare or name in _CONTRACT_FIELDS
    }
    content = message.get("content")
    if isinstance(content, list):
        cut["content"] = _cut_blocks(content, stage, length, rank)
    elif content is not None and rank <= stage.rank:
        cut["content"] = _cut_value(content, length, stage.label)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple) and rank <= stage.rank:
        cut["tool_calls"] = [_cut_call(call, length) for call in calls]
    return copy_json(cut)  # type: ignore[no-any-return]


def _cut_blocks(blocks: list[JSON], stage: _Stage, length: int, rank: _Rank) -> list[JSON]:
    kept: list[JSON] = []
    for block in blocks:
        kind = _kind(block)
        if not isinstance(kind, str) or kind not in _TEXT_BLOCKS:
            # Part of a signed thought or of a picture would be useless.
            is_removed = stage.bare and not isinstance(block, str)
            kept.append(_note_of_block(block, kind) if is_removed else block)
        elif (_Rank.RESULT if kind in RESULT_BLOCKS else rank) <= stage.rank:
            kept.append(_cut_value(block, length, stage.label))
        else:
            kept.append(block)
    return kept


def _note_of_block(block: JSON, kind: JSON, label: str = "") -> dict[str, JSON]:
    shown = kind[:40] if isinstance(kind, str) else type(block).__name__
    note = {"type": "text", "text": f"[{label}{shown} left out]"}
    return block if count_tokens(block, 1) <= count_tokens(note, 1) else note


def _cut_call(call: JSON, length: int) -> JSON:
    """Cut the arguments of a call. JSON text is cut inside its values, so that it stays valid."""
    if not isinstance(call, dict):
        return call
    cut = {name: value for name, value in call.items() if name not in ("arguments", "function")}
    for name in ("arguments", "function"):
        if name not in call:
            continue
        value = call[name]
        if name == "function" and isinstance(value, dict):
            cut[name] = _cut_call(value, length)
        elif isinstance(value, str):
            cut[name] = _cut_json_text(value, length)
        else:
            cut[name] = _cut_value(value, length)
    return {name: cut[name] for name in call}


def _cut_json_text(text: str, length: int) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return cut_text(text, length)
    cut = _cut_value(value, length)
    return text if cut == value else json.dumps(cut, ensure_ascii=False)


def _cut_value(value: JSON, length: int, label: str = "", depth: int = 0) -> JSON:
    """Cut all texts in a value, except ids and names."""
    if isinstance(value, str):
        return cut_text(value, length, label)
    if depth > 50:
        return value
    if isinstance(value, dict):
        # Part of an image or another medium in a result would be useless.
        if depth and (kind := value.get("type")) in MEDIA:
            is_small = count_tokens(value, 1) <= max(length, _MIN_TEXT)
            return value if is_small else _note_of_block(value, kind)
        whole = _WHOLE_KEYS if depth == 0 else ()
        return {
            key: inner if key in whole else _cut_value(inner, length, label, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cut_value(inner, length, label, depth + 1) for inner in value]
    return value


def cut_text(text: str, length: int, label: str = "") -> str:
    """Cut a text to its beginning and end, around a note with the number of missing characters.

    A text that wouldn't become shorter is returned unchanged.

    Args:
        text: The text.
        length: Number of characters to keep.
        label: Beginning of the note.
    """
    missing = len(text) - length
    if missing <= 0:
        return text
    note = f"[{label}{missing} characters left out]"
    if length:
        note = f"\n{note}\n"
    if len(note) >= missing:
        return text
    tail = length // 3
    return f"{text[: length - tail]}{note}{text[len(text) - tail :]}"
