"""The walk over JSON-like values, and the copy that hook dispatch makes of every payload.

One engine (`rebuild`) does every walk except the copy on the hot path: it keeps its own stack, remembers what it has
finished and knows what it is inside of, so no value — ten thousand levels deep, circular, or one list reachable by
2**40 routes — makes it recurse, hang or grow beyond the size of what it was given.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ..errors import ModelError

JSONScalar: TypeAlias = "str | int | float | bool | None"
JSONArray: TypeAlias = "list[JSONValue]"
JSONObject: TypeAlias = "dict[str, JSONValue]"
JSONValue: TypeAlias = "JSONScalar | JSONArray | JSONObject"

TOO_DEEP = "[TOO DEEP]"
CIRCULAR = "[CIRCULAR]"

LEAVES = frozenset({str, int, float, bool, type(None), bytes})
MAX_COPY_DEPTH = 1000
MOST_COPIED = 40_000_000
CONTAINER = 100
"""From how many items on the copy remembers what it has seen; a container counts as a hundred. A transcript of 10,000 messages
has a fifth of that."""
LONG = 16
"""More items than this are worth a look at all of them at once."""
DICTS = frozenset({dict})
_CONTAINERS = frozenset({dict, list})


# ── the engine ───────────────────────────────────────────────────────────────────────────────────

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PLAIN = (dict, list, tuple)
_LONGEST_PATH = 300


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


class Frame:
    """One container on the way from the root to the current position of a walk; `values` is already a private copy."""

    __slots__ = ("at", "keys", "kind", "source", "values")

    def __init__(self, source: Any) -> None:
        kind = type(source)
        self.source, self.kind, self.at = source, kind, 0
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
            if all(old is new for old, new in zip(tuple.__iter__(self.source), values, strict=True)):
                return self.source
            try:
                return tuple.__new__(kind, values)
            except TypeError:  # structseq types such as time.struct_time refuse this constructor
                return tuple(values)
        try:
            return frozenset(values) if issubclass(kind, frozenset) else set(values)
        except TypeError:  # a redacted member need not be hashable
            return values


def rebuild(
    root: Any,
    visit: Callable[[Any, Sequence[Frame]], Any] | None = None,
    *,
    subject: str,
    max_depth: int = MAX_COPY_DEPTH,
    containers: tuple[type, ...] = _PLAIN,
    mark: bool = False,
) -> Any:
    """Copy a value container by container, passing everything met through `visit`.

    Args:
        root: Where to start.
        visit: Called with each value and the frames around it (innermost last) before the value is entered; what it
            returns takes the value's place and is entered in turn if it is a container.
        subject: What is being done, for the error.
        max_depth: How many containers may be nested.
        containers: The types that are entered; instances of others are leaves and are shared.
        mark: Put a marker where the value is circular or too deep, instead of raising.

    Raises:
        ModelError: The value is circular or too deep, and `mark` is False.
    """
    frames: list[Frame] = []
    opened: set[int] = set()
    # Finished containers are kept alive beside their copies: visit() may create containers whose id would be reused.
    finished: dict[int, tuple[Any, Any]] = {}
    value = root
    while True:
        if visit is not None:
            value = visit(value, frames)
        if type(value) not in LEAVES and issubclass(type(value), containers):
            identity = id(value)
            if identity in finished:
                value = finished[identity][1]
            elif identity in opened or len(frames) >= max_depth:
                circular = identity in opened
                if not mark:
                    what = "the value contains itself" if circular else f"nested deeper than {max_depth} levels"
                    raise ModelError([(format_path(f.key() for f in frames), what)], subject=subject)
                value = CIRCULAR if circular else TOO_DEEP
            else:
                opened.add(identity)
                frames.append(Frame(value))
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
    opened.discard(id(frame.source))
    finished[id(frame.source)] = (frame.source, built)
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
    if type(value) is not dict:
        return value if type(value) in LEAVES else _copy_other(value)
    copied = value.copy()
    dicts: list[Any] | None = None
    lists: list[Any] | None = None
    try:
        # Most payloads are flat or one level deep: this loop alone serves them, without a call per container.
        for key, child in copied.items():
            if type(child) in LEAVES:
                continue
            if type(child) is dict:
                copied[key] = inner = child.copy()
                for leaf in inner.values():
                    if type(leaf) not in LEAVES:
                        if dicts is None:
                            dicts, lists = [], []
                        dicts.append(inner)
                        break
            elif issubclass(type(child), list):
                copied[key] = items = list.copy(child)  # a subclass is read without running its own methods
                for leaf in items:
                    if type(leaf) not in LEAVES:
                        if lists is None:
                            dicts, lists = [], []
                        lists.append(items)
                        break
            elif is_container(child):
                raise _NeedsCare
        if dicts is not None and lists is not None:
            _copy_levels(dicts, lists, 2)
    except _NeedsCare:
        return _care(value)
    return copied


def is_container(value: Any) -> bool:
    """Whether something that is neither dict nor list nor a plain leaf holds what must be copied."""
    kind = type(value)
    return issubclass(kind, _PLAIN) and (kind is not tuple or not LEAVES.issuperset(map(type, value)))


def size_inside(items: list[Any], kinds: set[type]) -> int:
    """What copying the members of a list takes, in items, if it holds nothing but containers; otherwise 0."""
    return CONTAINER * len(items) + sum(map(len, items)) if kinds <= _CONTAINERS else 0


def _copy_other(value: Any) -> Any:
    if type(value) is not list:
        return _care(value)
    copied = value.copy()
    try:
        _copy_levels([], [copied], 1)
    except _NeedsCare:
        return _care(value)
    return copied


def _copy_levels(dicts: list[dict[Any, Any]], lists: list[list[Any]], depth: int) -> None:
    """Copy below these (already copied) containers, level by level, which counts the depth for nothing.

    One flat loop per level beats a recursive call per container by a tenth on large payloads. It does not notice that
    a container is reached twice, so it gives up when the tree unrolls into suspiciously much.
    """
    seen = 0
    while dicts or lists:
        seen += CONTAINER * (len(dicts) + len(lists))
        if depth > MAX_COPY_DEPTH or seen > MOST_COPIED:
            raise _NeedsCare
        depth += 1
        next_dicts: list[dict[Any, Any]] = []
        next_lists: list[list[Any]] = []
        for parent in dicts:
            for key, child in parent.items():
                if type(child) is str:
                    continue
                if type(child) is dict:
                    parent[key] = copied = child.copy()
                    next_dicts.append(copied)
                elif type(child) is list:
                    parent[key] = items = child.copy()
                    next_lists.append(items)
                elif type(child) not in LEAVES and is_container(child):
                    raise _NeedsCare
        for array in lists:
            if len(array) > LONG:
                kinds = set(map(type, array))
                if (seen := seen + size_inside(array, kinds)) > MOST_COPIED:
                    raise _NeedsCare
                if kinds == DICTS:  # the messages of a conversation; `map` copies many dicts faster
                    array[:] = map(dict.copy, array)
                    next_dicts += array
                    continue
            index = 0  # enumerate() would build a tuple per item
            for child in array:
                if type(child) is dict:
                    array[index] = copied = child.copy()
                    next_dicts.append(copied)
                elif type(child) is list:
                    array[index] = items = child.copy()
                    next_lists.append(items)
                elif type(child) not in LEAVES and is_container(child):
                    raise _NeedsCare
                index += 1  # noqa: SIM113
        dicts, lists = next_dicts, next_lists


def _care(value: Any) -> Any:
    return rebuild(value, subject="value cannot be copied")
