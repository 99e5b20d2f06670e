"""Walks over JSON-like values: rebuild, copy and compare."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Sized
from itertools import chain
from typing import Any, TypeAlias

from amplifier.errors import ModelError

TOO_DEEP = "[TOO DEEP]"
CIRCULAR = "[CIRCULAR]"
TOO_LARGE = "[TOO LARGE]"

# A small value may be one list that is reachable by 2**50 paths. No regular value unrolls into so
# many containers.
MANY_CONTAINERS = 100_000
MAX_SHARING = 4

LEAVES = frozenset({str, int, float, bool, type(None), bytes})
MAX_COPY_DEPTH = 1000
# The fast copy gives up after this number of items, where a container counts as 100. A transcript
# of 10,000 messages has a fifth of them.
MAX_COPIED = 40_000_000
CONTAINER = 100
# This is well within the recursion limit of any caller.
_FAST_DEPTH = 200
# A longer list is checked as a whole first.
LONG = 16
DICTS = frozenset({dict})


# ── rebuild ──────────────────────────────────────────────────────────────────────────────────────

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PLAIN = (dict, list, tuple)
_MAX_PATH = 300
_TOO_OFTEN = (
    f"uses the same parts so often that its JSON would hold over {MANY_CONTAINERS:,} containers"
)


def format_path(parts: Iterable[object], root: str = "") -> str:
    """Format a path as in our errors: ``content[2].text``, or ``$.tools[0].config`` with a root."""
    text = root
    for part in parts:
        if type(part) is int:
            text += f"[{part}]"
        elif type(part) is str and len(part) < 80 and _IDENTIFIER.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{ascii(part)[:80] if type(part) in LEAVES else type(part).__name__}]"
    return text if len(text) <= _MAX_PATH else f"{text[:200]}…{text[-80:]}"


def join_paths(outer: str, inner: str) -> str:
    """Join the path of a value and a path inside it."""
    if not outer or not inner:
        return outer or inner
    return f"{outer}{inner}" if inner.startswith("[") else f"{outer}.{inner}"


class Frame:
    """One container on the path from the root to the current position of a walk.

    Attributes:
        at: Index of the current member.
        found: The container in the original value.
        keys: The keys of a dict, or None.
        kind: Class of `source`.
        source: The container that the visit returned for `found`.
        values: The members, in a list that the walk changes.
    """

    __slots__ = ("at", "found", "keys", "kind", "source", "values")

    def __init__(self, source: Any, found: Any) -> None:
        kind = type(source)
        self.source, self.found, self.kind, self.at = source, found, kind, 0
        self.keys: list[Any] | None = None
        # Methods of the base classes are used, so that no method of a subclass runs. The order of
        # an OrderedDict is known to its own iterator only.
        if issubclass(kind, OrderedDict):
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
        """Return the key or index of the current member."""
        return self.at if self.keys is None else self.keys[self.at]

    def build(self) -> Any:
        """Return the finished container.

        Subclasses of dict and list become plain, and tuples keep their class. A tuple without
        replaced members is returned itself.
        """
        kind, values = self.kind, self.values
        if self.keys is not None:
            return dict(zip(self.keys, values, strict=True))
        if issubclass(kind, list):
            return values
        if issubclass(kind, tuple):
            pairs = zip(tuple.__iter__(self.source), values, strict=True)
            if all(old is new for old, new in pairs):
                return self.source
            # Types such as time.struct_time refuse this constructor.
            try:
                return tuple.__new__(kind, values)
            except TypeError:
                return tuple(values)
        # A redacted member need not be hashable.
        try:
            return frozenset(values) if issubclass(kind, frozenset) else set(values)
        except TypeError:
            return values


# Called with a problem, its marker and the frames around a container that is not entered. Returns
# the replacement of the container.
Stop: TypeAlias = Callable[[str, str, Sequence[Frame]], Any]


# The walk has its own stack, and keeps track of the containers around the current one and of the
# finished ones. So it neither recurses nor hangs, and the result is not larger than the value, even
# if that is ten thousand levels deep, circular, or one list that is reachable by 2**40 paths.


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
    """Copy a value container by container, and pass all values through `visit`.

    Args:
        root: The value.
        visit: Function of a value and the frames around it, innermost last. Its result replaces
            the value, and is entered if it is a container.
        subject: Subject of the error.
        max_depth: Maximum nesting of containers.
        containers: The types that are entered. Instances of other types are shared.
        mark: Whether to put markers where the value is circular, too deep or too large, instead of
            raising.
        unroll: Whether to copy a container every time it occurs, as in text. A value that becomes
            many times larger without sharing is then too large.
        stop: Function that decides about circular, too deep and too large parts.

    Raises:
        ModelError: The value is circular, too deep or too large, without `mark` or `stop`.
    """

    def mark_or_raise(problem: str, marker: str, frames: Sequence[Frame]) -> str:
        if mark:
            return marker
        raise ModelError([(format_path(frame.key() for frame in frames), problem)], subject=subject)

    stop = stop or mark_or_raise
    frames: list[Frame] = []
    opened: set[int] = set()
    # A finished container is kept alive along with its copy, so that its id is not reused.
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
            elif entered > MANY_CONTAINERS and entered > _max_entered(finished, opened):
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


def _max_entered(finished: Sized, opened: Sized) -> int:
    return MAX_SHARING * (len(finished) + len(opened))


def _close(frames: list[Frame], opened: set[int], finished: dict[int, tuple[Any, Any]]) -> Any:
    frame = frames.pop()
    built = frame.build()
    opened.discard(id(frame.found))
    finished[id(frame.found)] = (frame.found, built)
    return built


# ── copy ─────────────────────────────────────────────────────────────────────────────────────────


class _NeedsRebuild(Exception):
    """The fast copy met a value that it cannot copy exactly, or that is too large."""


# The copy isolates the payload of every hook handler from the next, so it is on the hot path.


def copy_json(value: Any) -> Any:
    """Copy dicts and lists at all depths, and share every other object.

    A tuple is rebuilt if it contains anything that is copied. Subclasses of dict and list become
    plain without running their methods, and subclasses of tuple keep their class. Sets and other
    mappings are shared. A container that occurs twice may occur twice in the copy, or become two.

    Raises:
        ModelError: The value contains itself or is nested deeper than 1000 levels.
    """
    try:
        return value if type(value) in LEAVES else _copy(value, _FAST_DEPTH, [MAX_COPIED])
    except (_NeedsRebuild, RecursionError):
        return rebuild(value, subject="value cannot be copied")


def _copy(value: Any, levels: int, left: list[int]) -> Any:
    """Copy a container. Repeated occurrences of a container use up the remaining items.

    Args:
        value: The container.
        levels: Remaining levels of nesting.
        left: Remaining number of items. A container counts as 100.
    """
    if levels <= 0 or left[0] <= 0:
        raise _NeedsRebuild
    kind = type(value)
    if kind is dict:
        copied: Any = value.copy()
        left[0] -= CONTAINER + len(copied)
        for key, child in copied.items():
            if type(child) not in LEAVES:
                copied[key] = _copy(child, levels - 1, left)
    elif issubclass(kind, list):
        # Methods of a subclass do not run.
        copied = list.copy(value)
        left[0] -= CONTAINER + len(copied)
        # Such a list is usually a conversation.
        if len(copied) > LONG and DICTS.issuperset(map(type, copied)):
            left[0] -= CONTAINER * len(copied) + sum(map(len, copied))
            if left[0] <= 0:
                raise _NeedsRebuild
            copied = list(map(dict.copy, copied))
            if not LEAVES.issuperset(map(type, chain.from_iterable(map(dict.values, copied)))):
                for row in copied:
                    for key, child in row.items():
                        if type(child) not in LEAVES:
                            row[key] = _copy(child, levels - 2, left)
        else:
            for index, child in enumerate(copied):
                if type(child) not in LEAVES:
                    copied[index] = _copy(child, levels - 1, left)
    elif kind is tuple and LEAVES.issuperset(map(type, value)):
        return value
    elif issubclass(kind, _PLAIN):
        raise _NeedsRebuild
    else:
        return value
    return copied


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


def is_same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON value. 1 is neither True nor 1.0.

    Subclasses of dict and list count as plain, and their methods do not run. An object that is not
    JSON is equal only to itself, because ``__eq__`` of a foreign class may do anything.
    """
    pending = [(one, other)]
    # The same list may be reachable by very many paths.
    compared: set[tuple[int, int]] = set()
    while pending:
        one, other = pending.pop()
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
            pending += pairs
    return True


def _members(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """Return the pairs of corresponding members of two containers.

    The result is None if the containers have different kinds, keys or lengths.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = dict(dict.items(one)), dict(dict.items(other))
        return [(left[key], right[key]) for key in left] if left.keys() == right.keys() else None
    kind: Any
    for kind in (list, tuple):
        if isinstance(one, kind) and isinstance(other, kind):
            items, others = list(kind.__iter__(one)), list(kind.__iter__(other))
            return list(zip(items, others, strict=True)) if len(items) == len(others) else None
    return None
