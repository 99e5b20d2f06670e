"""The walk over JSON-like values, the copy that hook dispatch makes of every payload, and the comparison of two values.

One engine (`rebuild`) does every walk except the copy on the hot path: it keeps its own stack, remembers what it has
finished and knows what it is inside of, so no value — ten thousand levels deep, circular, or one list reachable by
2**40 routes — makes it recurse, hang or grow beyond the size of what it was given.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

from amplifier.errors import ModelError

TOO_DEEP = "[TOO DEEP]"
CIRCULAR = "[CIRCULAR]"
TOO_LARGE = "[TOO LARGE]"

# A value may be one list reachable by 2**50 routes. No honest one unrolls into this many containers and is small.
MANY_CONTAINERS = 100_000
MAX_SHARING = 4

LEAVES = frozenset({str, int, float, bool, type(None), bytes})
MAX_COPY_DEPTH = 1000
MOST_COPIED = 40_000_000
CONTAINER = 100
"""From how many items on the copy remembers what it has seen; a container counts as a hundred. A transcript of 10,000 messages
has a fifth of that."""
_FAST_DEPTH = 200  # well within the recursion limit of any caller
LONG = 16
"""More items than this are worth a look at all of them at once."""
DICTS = frozenset({dict})


# ── the engine ───────────────────────────────────────────────────────────────────────────────────

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PLAIN = (dict, list, tuple)
_LONGEST_PATH = 300
_TOO_OFTEN = (
    f"uses the same parts so often that its JSON would hold over {MANY_CONTAINERS:,} containers"
)


def format_path(parts: Iterable[object], root: str = "") -> str:
    """Write a path the way our errors do: ``content[2].text``, with a root ``$.tools[0].config``."""
    text = root
    for part in parts:
        if type(part) is int:
            text += f"[{part}]"
        elif type(part) is str and len(part) < 80 and _IDENTIFIER.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{ascii(part)[:80] if type(part) in LEAVES else type(part).__name__}]"
    return text if len(text) <= _LONGEST_PATH else f"{text[:200]}…{text[-80:]}"


def join_paths(outer: str, inner: str) -> str:
    """The path of something below another one, from the paths of both."""
    if not outer or not inner:
        return outer or inner
    return f"{outer}{inner}" if inner.startswith("[") else f"{outer}.{inner}"


class Frame:
    """One container on the way from the root to the current position of a walk; `values` is already a private copy.

    `found` is what the walk met, `source` the container that the visit made of it.
    """

    __slots__ = ("at", "found", "keys", "kind", "source", "values")

    def __init__(self, source: Any, found: Any) -> None:
        kind = type(source)
        self.source, self.found, self.kind, self.at = source, found, kind, 0
        self.keys: list[Any] | None = None
        # Unbound methods of the base class: a subclass with methods of its own is read without running them.
        if issubclass(kind, OrderedDict):  # only its own iterator knows about move_to_end()
            self.keys = list(OrderedDict.__iter__(source))
            self.values = [dict.__getitem__(source, key) for key in self.keys]
        elif issubclass(kind, dict):
            self.keys, self.values = list(dict.keys(source)), list(dict.values(source))
        elif issubclass(kind, list):
            self.values = list(list.__iter__(source))
        elif issubclass(kind, tuple):
            self.values = list(tuple.__iter__(source))
        else:
            self.values = list(source)

    def key(self) -> object:
        """The key or index of the value the walk looks at now."""
        return self.at if self.keys is None else self.keys[self.at]

    def build(self) -> Any:
        """The finished container; subclasses of dict and list become plain, tuples keep their class.

        A tuple in which nothing was replaced is returned itself.
        """
        kind, values = self.kind, self.values
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        if issubclass(kind, list):
            return values
        if issubclass(kind, tuple):
            if all(
                old is new for old, new in zip(tuple.__iter__(self.source), values, strict=True)
            ):
                return self.source
            try:
                return tuple.__new__(kind, values)
            except TypeError:  # structseq types such as time.struct_time refuse this constructor
                return tuple(values)
        try:
            return frozenset(values) if issubclass(kind, frozenset) else set(values)
        except TypeError:  # a redacted member need not be hashable
            return values


Stop: TypeAlias = Callable[[str, str, Sequence[Frame]], Any]
"""Called with a problem, the marker for it and the frames around a container that is not entered; returns what takes its place."""


def rebuild(
    root: Any,
    visit: Callable[[Any, Sequence[Frame]], Any] | None = None,
    *,
    subject: str = "",
    max_depth: int = MAX_COPY_DEPTH,
    containers: tuple[type, ...] = _PLAIN,
    mark: bool = False,
    unroll: bool = False,
    stop: Stop | None = None,
) -> Any:
    """Copy a value container by container, passing everything met through `visit`.

    Args:
        root: Where to start.
        visit: Called with each value and the frames around it (innermost last) before the value is entered; what it
            returns takes the value's place and is entered in turn if it is a container.
        subject: What is being done, for the error.
        max_depth: How many containers may be nested.
        containers: The types that are entered; instances of others are leaves and are shared.
        mark: Put a marker where the value is circular, too deep or too large, instead of raising.
        unroll: Copy a container each time it is met, as text has to; one that sharing makes many times larger than it is is too large.
        stop: Decides about such places itself.

    Raises:
        ModelError: The value is circular, too deep or too large, and neither `mark` nor `stop` is given.
    """

    def mark_or_raise(problem: str, marker: str, frames: Sequence[Frame]) -> str:
        if mark:
            return marker
        raise ModelError([(format_path(frame.key() for frame in frames), problem)], subject=subject)

    stop = stop or mark_or_raise
    frames: list[Frame] = []
    opened: set[int] = set()
    # What is finished is kept alive beside its copy, so that no id is reused.
    finished: dict[int, tuple[Any, Any]] = {}
    value, entered = root, 0
    while True:
        found = value
        if visit is not None:
            value = visit(found, frames)
        if type(value) not in LEAVES and issubclass(type(value), containers):
            identity = id(found)
            if identity in finished and not unroll:
                value = finished[identity][1]
            elif identity in opened:
                value = stop("contains itself", CIRCULAR, frames)
            elif len(frames) >= max_depth:
                value = stop(f"nested deeper than {max_depth} levels", TOO_DEEP, frames)
            elif entered > MANY_CONTAINERS and entered > MAX_SHARING * (
                len(finished) + len(opened)
            ):
                value = stop(_TOO_OFTEN, TOO_LARGE, frames)
            else:
                entered += 1
                opened.add(identity)
                frames.append(Frame(value, found))
                if frames[-1].values:
                    value = frames[-1].values[0]
                    continue
                value = _close(frames, opened, finished)
        while frames:
            frame = frames[-1]
            frame.values[frame.at] = value
            frame.at += 1
            if frame.at < len(frame.values):
                value = frame.values[frame.at]
                break
            value = _close(frames, opened, finished)
        else:
            return value


def _close(frames: list[Frame], opened: set[int], finished: dict[int, tuple[Any, Any]]) -> Any:
    frame = frames.pop()
    built = frame.build()
    opened.discard(id(frame.found))
    finished[id(frame.found)] = (frame.found, built)
    return built


# ── copy ─────────────────────────────────────────────────────────────────────────────────────────


class _NeedsCare(Exception):
    """The fast copy met something it cannot copy exactly, or too much of it; the engine takes over."""


def copy_json(value: Any) -> Any:
    """Copy dicts and lists all the way down and share every leaf, whatever object it is.

    This isolates the payload of one hook handler from the next, so it runs once per handler and event. Exactly `dict`
    and `list` take the fast path. Tuples are rebuilt if they hold anything that is copied, and shared otherwise;
    subclasses of dict and list arrive as plain dicts and lists (their own methods are not run), of tuple as their own
    class. All else is a leaf, sets and other mappings included. A container that occurs twice may occur twice in
    the copy, or become two.

    Raises:
        ModelError: The value contains itself or is nested deeper than 1000 levels.
    """
    try:
        return value if type(value) in LEAVES else _copied(value, _FAST_DEPTH, [MOST_COPIED])
    except (_NeedsCare, RecursionError):
        return rebuild(value, subject="value cannot be copied")


def _copied(value: Any, levels: int, left: list[int]) -> Any:
    """Copy what is no leaf. It does not notice that a container is reached twice, so it gives up when there is too much of it.

    Args:
        levels: How many containers may still be nested.
        left: How many items may still be copied; a container counts as a hundred.
    """
    if levels <= 0 or left[0] <= 0:
        raise _NeedsCare
    kind = type(value)
    if kind is dict:
        copied: Any = value.copy()
        left[0] -= CONTAINER + len(copied)
        for key, child in copied.items():
            if type(child) not in LEAVES:
                copied[key] = _copied(child, levels - 1, left)
    elif issubclass(kind, list):
        copied = list.copy(value)  # a subclass is read without running its own methods
        left[0] -= CONTAINER + len(copied)
        if len(copied) > LONG and DICTS.issuperset(
            map(type, copied)
        ):  # the messages of a conversation
            left[0] -= CONTAINER * len(copied) + sum(map(len, copied))
            if left[0] <= 0:
                raise _NeedsCare
            copied = list(map(dict.copy, copied))
            if not LEAVES.issuperset(map(type, chain.from_iterable(map(dict.values, copied)))):
                for row in copied:
                    for key, child in row.items():
                        if type(child) not in LEAVES:
                            row[key] = _copied(child, levels - 2, left)
        else:
            for index, child in enumerate(copied):
                if type(child) not in LEAVES:
                    copied[index] = _copied(child, levels - 1, left)
    elif issubclass(kind, _PLAIN) and (
        kind is not tuple or not LEAVES.issuperset(map(type, value))
    ):
        raise _NeedsCare
    else:
        return value
    return copied


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


def is_same_json(one: Any, other: Any) -> bool:
    """Whether a value and another are the same JSON value: 1 is neither True nor 1.0.

    Subclasses of dict and list count as plain ones, as in a copy by `copy_json`; their own methods are not run. A leaf that is not of
    JSON is the same only as itself: ``__eq__`` of a foreign class may do anything.
    """
    waiting = [(one, other)]
    compared: set[tuple[int, int]] = set()  # one list may be reached by very many routes
    while waiting:
        one, other = waiting.pop()
        if one is other:
            continue
        kind = type(one)
        if kind in LEAVES:
            if kind is not type(other) or one != other:
                return False
            continue
        pairs = _members(one, other)
        if pairs is None:
            return False
        if (id(one), id(other)) not in compared:
            compared.add((id(one), id(other)))
            waiting += pairs
    return True


def _members(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """The members of two containers that belong together; None if the two differ, or are no containers of one kind."""
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = dict(dict.items(one)), dict(dict.items(other))
        return [(left[key], right[key]) for key in left] if left.keys() == right.keys() else None
    kind: Any
    for kind in (list, tuple):
        if isinstance(one, kind) and isinstance(other, kind):
            items, others = list(kind.__iter__(one)), list(kind.__iter__(other))
            return list(zip(items, others, strict=True)) if len(items) == len(others) else None
    return None
