"""Putting something around an async method of one object of somebody else's, in place."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any

Around = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Awaits a call and returns what it returned, with something before or behind it."""


def put_around(thing: Any, name: str, around: Around, *, key: str) -> None:
    """Have every call of ``thing.name`` go through ``around``; done once per key, however often it is asked for.

    Only an async method that the object's class defines is touched: whatever a test has put there stays what it is. The new one
    is a method as well, so that a copy of the object calls itself and not the original.
    """
    method = getattr(thing, name, None)
    if not inspect.ismethod(method) or method.__self__ is not thing or not inspect.iscoroutinefunction(method.__func__):
        return
    function: Any = method.__func__
    keys: tuple[str, ...] = getattr(function, "compat_keys", ())
    if key in keys:
        return

    @functools.wraps(function)
    async def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await around(lambda: function(self, *args, **kwargs))

    calling.compat_keys = (*keys, key)  # type: ignore[attr-defined]  # so that it is done once
    with contextlib.suppress(AttributeError, TypeError):  # not every object takes attributes
        setattr(thing, name, MethodType(calling, thing))
