"""Hypothesis strategies for every model, for the tests of module authors.

`instances` draws any model. A keyword fixes a field, by a strategy or by a value, as in
``instances(Message, role="user")``. Every instance is valid, and ``from_json(to_json(x)) == x``
holds for it. Some have unknown members, unknown block types or integers beyond 64 bits. Needs the
extra ``testing``.
"""

from __future__ import annotations

import base64
import functools
import types
import typing
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, TypeVar

import attrs

from amplifier.errors import MissingExtraError
from amplifier.models import (
    ApprovalRequest,
    ContentBlockUnion,
    ImageBlock,
    Model,
    OpenModel,
    Pricing,
    ResponseFormat,
    TextBlock,
    ToolResult,
    UnknownBlock,
)

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as _error:
    raise MissingExtraError(
        "amplifier.conformance.strategies", extra="testing", missing="hypothesis"
    ) from _error

__all__ = ["content_blocks", "instances", "json_objects", "json_values", "response_formats"]

_ModelT = TypeVar("_ModelT", bound=Model)
_KNOWN_BLOCKS = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_call", "tool_result", "image", "reasoning"},
)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def _leaves() -> SearchStrategy[Any]:
    return st.none() | st.booleans() | st.integers() | _floats() | st.text(max_size=20)


def _floats() -> SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False)


@functools.cache
def json_values() -> SearchStrategy[Any]:
    """Draw any JSON value."""
    return st.recursive(
        _leaves(),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)
        ),
        max_leaves=4,
    )


def json_objects() -> SearchStrategy[dict[str, Any]]:
    """Draw JSON objects."""
    return st.dictionaries(st.text(max_size=8), json_values(), max_size=2)


# ── any model ────────────────────────────────────────────────────────────────────────────────────


def instances(cls: type[_ModelT], **fields: Any) -> SearchStrategy[_ModelT]:
    """Draw instances of any model class, ours or derived from ours.

    Args:
        cls: The class.
        fields: Strategies or values for some of its fields. ``extra`` fixes the unknown members.
    """
    # Type checkers doubt that a class of unhashable instances is itself hashable.
    key: Any = cls
    always, sometimes, unknown = _parts(key)
    fixed = {
        name: value if isinstance(value, SearchStrategy) else st.just(value)
        for name, value in fields.items()
    }
    unknown = fixed.pop("extra", unknown)
    always = {name: strategy for name, strategy in always.items() if name not in fixed}
    sometimes = {name: strategy for name, strategy in sometimes.items() if name not in fixed}
    drawn = st.fixed_dictionaries({**always, **fixed}, optional=sometimes)
    return st.builds(_with_unknown, st.just(cls), drawn, unknown)


_Parts = dict[str, SearchStrategy[Any]]


@functools.cache
def _parts(cls: type[Model]) -> tuple[_Parts, _Parts, SearchStrategy[dict[str, Any]]]:
    """Return strategies for the required fields, the optional ones, and the unknown members."""
    hints, special = typing.get_type_hints(cls), _SPECIAL_FIELDS.get(cls, {})
    always: _Parts = {}
    sometimes: _Parts = {}
    for attribute in attrs.fields(cls):
        if attribute.init and attribute.name != "extra":
            rule = special.get(attribute.name)
            part = always if attribute.default is attrs.NOTHING else sometimes
            part[attribute.name] = rule() if rule else _for_hint(hints[attribute.name])
    if not issubclass(cls, OpenModel):
        return always, sometimes, st.just({})
    names = st.text(max_size=8).filter(lambda name: name not in always and name not in sometimes)
    return always, sometimes, st.dictionaries(names, json_values(), max_size=2)


def _with_unknown(cls: type[_ModelT], fields: dict[str, Any], unknown: dict[str, Any]) -> _ModelT:
    instance = cls(**fields)
    if isinstance(instance, OpenModel):
        instance.extra.update(unknown)
    return instance


@functools.cache
def _for_hint(hint: Any) -> SearchStrategy[Any]:
    """Return a strategy for one type annotation."""
    if hint in _SCALARS:
        return _SCALARS[hint]()
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if hint is list or origin is list:
        return st.lists(_for_hint(arguments[0]) if arguments else json_values(), max_size=2)
    if hint is dict or origin is dict:
        return st.dictionaries(
            st.text(max_size=8), _for_hint(arguments[1]) if arguments else json_values(), max_size=2
        )
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_for_hint(member) for member in arguments])
    if isinstance(hint, type) and issubclass(hint, Model):
        return st.deferred(lambda: instances(hint))
    return json_values()


def _moments() -> SearchStrategy[datetime]:
    offsets = st.integers(-14 * 60, 14 * 60).map(
        lambda minutes: timezone(timedelta(minutes=minutes))
    )
    # Hypothesis wants naive bounds.
    first, last = datetime(1900, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001
    return st.datetimes(first, last, timezones=offsets)


def _amounts() -> SearchStrategy[Decimal]:
    return st.decimals(allow_nan=False, allow_infinity=False)


_SCALARS: dict[Any, Callable[[], SearchStrategy[Any]]] = {
    str: lambda: st.text(max_size=20),
    int: st.integers,
    float: _floats,
    bool: st.booleans,
    Decimal: _amounts,
    datetime: _moments,
    types.NoneType: st.none,
    Any: json_values,
}


def _tool_contents() -> SearchStrategy[Any]:
    """Draw contents of a `ToolResult`: plain text, and images as strict base64."""
    texts = st.builds(TextBlock, text=st.text(max_size=20))
    data = st.binary(min_size=1, max_size=9).map(lambda raw: base64.b64encode(raw).decode("ascii"))
    media_types = st.sampled_from(["image/png", "image/jpeg", "image/svg+xml", "image/PNG"])
    sources = st.fixed_dictionaries(
        {"type": st.just("base64"), "media_type": media_types, "data": data}
    )
    return st.none() | st.lists(
        texts | st.builds(ImageBlock, source=sources), min_size=1, max_size=3
    )


_SPECIAL_FIELDS: dict[type[Model], dict[str, Callable[[], SearchStrategy[Any]]]] = {
    ApprovalRequest: {
        "timeout": lambda: st.none() | st.floats(0, exclude_min=True, allow_infinity=False)
    },
    Pricing: {"currency": lambda: st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=3, max_size=3)},
    ToolResult: {"content": _tool_contents},
    UnknownBlock: {
        "type": lambda: st.text(max_size=12).filter(lambda tag: tag not in _KNOWN_BLOCKS)
    },
}
"""Fields with rules beyond their type."""


def content_blocks() -> SearchStrategy[ContentBlockUnion]:
    """Draw blocks of known and unknown types."""
    return _for_hint(ContentBlockUnion)


def response_formats() -> SearchStrategy[ResponseFormat]:
    """Draw response formats of every kind."""
    return _for_hint(ResponseFormat)
