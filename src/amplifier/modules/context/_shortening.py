"""Shortens messages that must all be shown and do not fit the budget, with a note in place of what is left out.

What is cut keeps its beginning and its end around a note of how much is missing. The order: tool
results; then the text of everything but the newest message, the newest prompt, pinned and system messages; then that of pinned ones; then
all of these down to the bare note; then the rest, down to the bare note at last; then pictures, thoughts, blocks of unknown kind and fields beyond the contract. Roles, ids, names and the shape of
tool calls stay whatever happens, so a budget below that skeleton is exceeded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import attrs

from amplifier._json import copy_json

from ._entries import CALL_BLOCKS, RESULT_BLOCKS, SYSTEM_ROLES, Entry
from ._token_estimate import MEDIA, count_tokens

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
        blocks = [_note_of_block(block, kind, label) if (kind := _kind(block)) in MEDIA else block for block in content]
        if blocks != content:
            message = {**entry.message, "content": blocks}
            entry = attrs.evolve(entry, message=message, tokens=count_tokens(message, chars_per_token), is_flat=False)
    return _cut_entry(entry, _Rank.LAST, _FIRST_PROMPT, chars_per_token)


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _cut_entry(entry: Entry, rank: _Rank, most: int, chars_per_token: float) -> Entry:
    if entry.tokens * chars_per_token <= most:
        return entry
    stage = _Stage(rank, most, label=f"message {entry.position + 1}: ")
    message = _cut_message(entry.message, stage, most, _Rank.OLDER)
    tokens = count_tokens(message, chars_per_token)
    return attrs.evolve(entry, message=message, tokens=tokens, is_flat=False) if tokens < entry.tokens else entry


def shorten(entries: Sequence[Entry], budget: int, chars_per_token: float) -> tuple[list[dict[str, Any]], int]:
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
        cut = [_cut_message(entry.message, stage, most, rank) for entry, rank in zip(entries, ranks, strict=True)]
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
    cut: dict[str, Any] = {name: value for name, value in message.items() if not stage.bare or name in _CONTRACT_FIELDS}
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
            kept += [_note_of_block(block, kind)] if stage.bare and not isinstance(block, str) else [block]
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
            return value if count_tokens(value, 1) <= max(most, _LEAST_TEXT) else _note_of_block(value, kind)
        return {
            key: inner if depth == 0 and key in _WHOLE_KEYS else _cut_value(inner, most, label, depth + 1)
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
