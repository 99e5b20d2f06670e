"""Judge the views of a context by the rules of the contract.

Contexts may shorten, summarise and leave out messages, so only the clauses are checked. Messages
are identified by their content or their mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amplifier.conformance.inputs.conversations import (
    CHARACTERS_PER_TOKEN,
    Message,
    call_ids,
    mark_of,
    newest_unit,
    size,
    total_size,
)

MAX_CHARACTERS_PER_TOKEN = 7
"""More characters per token than any way of counting gives for three-letter words."""
EXCESS_CHARACTERS_PER_TOKEN = 12
"""Characters of history per token of the budget from which a view has to leave something out."""

INSTRUCTIONS = ("system", "developer")
_SHOWN_TO_MODEL = ("role", "content", "tool_calls", "tool_call_id")
"""The fields that are sent to a model."""

Violation = tuple[str, str]
"""A clause and the violation in words."""


def holds(stored: Any, given: Any) -> bool:
    """Return whether a stored message has every field of the given one, and maybe more."""
    if not isinstance(stored, dict):
        return False
    return all(key in stored and _same(stored[key], value) for key, value in given.items())


def shows(shown: Any, given: Any) -> bool:
    """Return whether a message of a view is the given one, apart from fields for no model."""
    return holds(shown, {key: value for key, value in given.items() if key in _SHOWN_TO_MODEL})


def difference(stored: Any, expected: Sequence[Message]) -> str | None:
    """Describe the first difference between a stored history and the expected one, if any."""
    if not isinstance(stored, list):
        return f"get_messages returned {type(stored).__name__}; expected a list"
    for position, (message, wanted) in enumerate(zip(stored, expected, strict=False)):
        if not holds(message, wanted):
            return (
                f"message {position} of {len(expected)} is {shortened(message)}; "
                f"expected {shortened(wanted)}"
            )
    if len(stored) != len(expected):
        return f"get_messages returned {len(stored)} messages; expected {len(expected)}"
    return None


def is_whole(history: Sequence[Message], view: Any) -> bool:
    """Return whether a view shows all messages unchanged, instructions aside."""
    if not isinstance(view, list):
        return False
    rest = iter(
        message
        for message in view
        if isinstance(message, dict) and message.get("role") not in INSTRUCTIONS
    )
    return all(
        any(shows(shown, wanted) for shown in rest) for wanted in history if not _rank(wanted)
    )


def marks(view: Any) -> list[str]:
    """Return the marks in a view, because messages that the context adds may differ each time."""
    candidates = [mark_of(message) for message in view or () if isinstance(message, dict)]
    return [mark for mark in candidates if mark is not None]


def view_violations(
    history: Sequence[Message], view: Any, budget: int | None = None
) -> Iterator[Violation]:
    """Yield every violation of a view.

    Args:
        history: The stored messages.
        view: The result for a request.
        budget: The number of tokens that the view should fit into, or None for no limit.
    """
    if not isinstance(view, list) or not all(
        isinstance(message, dict) and "role" in message for message in view
    ):
        yield (
            "C7",
            f"get_messages_for_request returned {shortened(view)}; expected a list of messages",
        )
        return
    places = _Positions(history, view)
    yield from _order(history, view, places)
    yield from _pairs(history, view)
    yield from _systems(history, view, places)
    yield from _newest(history, view)
    if budget is not None:
        yield from _fit(history, view, places, budget)


# ── identification ──


class _Positions:
    """The positions of the messages of a view in the history.

    Attributes:
        candidates: The possible positions of every message of the view. Empty for a message that
            the context added.
        chosen: One of the candidates for each message, in order as far as possible, or None for a
            message that was added or is out of order.
        displaced: The indexes of messages that are certainly out of order.
    """

    def __init__(self, history: Sequence[Message], view: Sequence[Message]) -> None:
        known: dict[tuple[Any, ...], list[int]] = {}
        for position, message in enumerate(history):
            known.setdefault(_identity(message), []).append(position)
        self.candidates: list[list[int]] = []
        for message in view:
            alike = known.get(_identity(message), [])
            equal = [at for at in alike if shows(message, history[at])]
            self.candidates.append(equal or (alike if _is_marked(message) else []))
        self.chosen: list[int | None] = [None] * len(view)
        self.displaced: list[int] = []
        for rank in ("system", "developer", ""):
            last = -1
            for at, message in enumerate(view):
                if _rank(message) != rank or not self.candidates[at]:
                    continue
                places = [place for place in self.candidates[at] if place > last]
                if places:
                    last = self.chosen[at] = places[0]
                elif any(
                    _is_certainly(message, history[place]) for place in self.candidates[at]
                ) and not any(_may_be_rest_of(later, message) for later in history[last + 1 :]):
                    self.displaced.append(at)

    def shown(self) -> set[int]:
        return {place for place in self.chosen if place is not None}


def _rank(message: Message) -> str:
    """Return the group that keeps its order. Instructions may be moved to the beginning."""
    return message["role"] if message["role"] in INSTRUCTIONS else ""


def _identity(message: Message) -> tuple[Any, ...]:
    return (
        message.get("role"),
        repr(message.get("tool_call_id")),
        tuple(call_ids(message)),
        mark_of(message)
        or (
            None
            if message.get("tool_call_id") or call_ids(message)
            else repr(message.get("content"))
        ),
    )


def _is_marked(message: Message) -> bool:
    return (
        mark_of(message) is not None or bool(message.get("tool_call_id")) or bool(call_ids(message))
    )


def _is_certainly(shown: Message, message: Message) -> bool:
    """Return whether a message of a view is from the history, unlike a summary, for example."""
    return (
        bool(shown.get("tool_call_id") or call_ids(shown))
        or shows(shown, message)
        or _may_be_rest_of(message, shown)
    )


def _may_be_rest_of(message: Message, shown: Message) -> bool:
    """Return whether a message of a view may be a shortened form of a message."""
    if any(shown.get(key) != message.get(key) for key in ("role", "tool_call_id")) or call_ids(
        shown
    ) != call_ids(message):
        return False
    left, whole = _text(shown), _text(message)
    return not shown.get("content") or (left is not None and whole is not None and left in whole)


def _text(message: Message) -> str | None:
    """Return the text of a message, whole or in blocks, or None if it has other content."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [
            block["text"]
            for block in content
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        ]
        return "".join(texts) if len(texts) == len(content) else None
    return content if isinstance(content, str) else None


# ── the clauses ──


def _order(
    history: Sequence[Message], view: Sequence[Message], places: _Positions
) -> Iterator[Violation]:
    for at in places.displaced[:1]:
        shown = shortened(view[at])
        yield "C10", f"the view shows {shown} after messages that came later, or more than once"
    newest_before = -1
    for at, place in enumerate(places.chosen):
        if place is None:
            continue
        # It is common to show instructions earlier than they were given. Showing them later changes
        # their meaning. Of equal instructions, the view may show the last one.
        if _rank(view[at]) and max(places.candidates[at]) < newest_before:
            shown = shortened(view[at])
            yield "C10", f"the view shows the instruction {shown} after messages that came later"
            return
        if not _rank(view[at]):
            newest_before = max(newest_before, place)


def _pairs(history: Sequence[Message], view: Sequence[Message]) -> Iterator[Violation]:
    called, answered = _ids(history)
    called_here, answered_here = _ids(view)
    for call_id in sorted(called & answered):
        if call_id in called_here and call_id not in answered_here:
            yield "C9", f"the view shows the call {call_id!r} without its result"
            return
        if call_id in answered_here and call_id not in called_here:
            yield "C9", f"the view shows the result of {call_id!r} without its call"
            return


def _ids(messages: Sequence[Message]) -> tuple[set[str], set[str]]:
    called = {call_id for message in messages for call_id in call_ids(message)}
    answered = {str(message["tool_call_id"]) for message in messages if message.get("tool_call_id")}
    return called, answered


def _systems(
    history: Sequence[Message], view: Sequence[Message], places: _Positions
) -> Iterator[Violation]:
    shown = [message for message in view if message["role"] == "system"]
    texts = "\n".join(str(message.get("content")) for message in shown)
    wanted = [(at, message) for at, message in enumerate(history) if message["role"] == "system"]
    if len(shown) >= len(wanted):
        return
    for at, message in wanted:
        # Several messages may be joined into one, in which an empty message is not visible.
        joined = bool(shown) and str(message.get("content") or "") in texts
        if joined or at in places.shown() or any(shows(m, message) for m in shown):
            continue
        where = f"number {at + 1} of {len(history)}"
        yield "C11", f"the view leaves out the system message {shortened(message)}, {where}"
        return


def _newest(history: Sequence[Message], view: Sequence[Message]) -> Iterator[Violation]:
    # The context decides where it shows instructions.
    if not history or _rank(history[-1]):
        return
    newest = history[-1]
    if not view:
        yield "C12", "the view is empty; expected at least the newest message"
        return
    last = view[-1]
    if shows(last, newest) or (_identity(last) == _identity(newest) and _is_marked(newest)):
        return
    # A shortened message may be equal to an older one.
    is_older = any(shows(last, message) for message in history[:-1]) and not _may_be_rest_of(
        newest, last
    )
    if (
        last["role"] != newest["role"]
        or is_older
        or last.get("tool_call_id") != newest.get("tool_call_id")
    ):
        wanted = shortened(newest)
        yield "C12", f"the view ends with {shortened(last)}; expected the newest message, {wanted}"


def _fit(
    history: Sequence[Message], view: Sequence[Message], places: _Positions, budget: int
) -> Iterator[Violation]:
    unit = newest_unit(history)
    optional = [
        message
        for message, place in zip(view, places.chosen, strict=True)
        if not _rank(message) and place not in unit
    ]
    taken, all_of_it = total_size(optional), total_size(history)
    if total_size(view) >= all_of_it > EXCESS_CHARACTERS_PER_TOKEN * budget:
        much = all_of_it // CHARACTERS_PER_TOKEN
        yield "C7", f"a history of about {much} tokens was returned whole for a budget of {budget}"
    if taken > MAX_CHARACTERS_PER_TOKEN * budget:
        about = taken // CHARACTERS_PER_TOKEN
        biggest = max(optional, key=size)
        what = f"the view takes about {about} tokens, not counting system messages and the newest"
        yield "C8", f"{what}, for a budget of {budget}; its largest part is {shortened(biggest)}"


# ── comparison ──


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) is isinstance(other, bool)


def shortened(value: Any) -> str:
    """Return the repr of a value, or its beginning and its length."""
    text = repr(value)
    return text if len(text) <= 140 else f"{text[:120]}… ({len(text)} characters)"
