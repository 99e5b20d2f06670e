"""Wrapping an async method of one object of third-party code in place."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import MethodType
from typing import Any


def put_around(thing: Any, name: str, around: Callable[..., Awaitable[Any]], *, key: str) -> None:
    """Have every call of ``thing.name`` go through ``around(call, *args, **kwargs)``; repeating it with the same key does nothing.

    Only an async method that the object's class defines is wrapped: what a test has put there stays as it is. The wrapper
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
        return await around(partial(function, self), *args, **kwargs)

    calling.compat_keys = (*keys, key)  # type: ignore[attr-defined]  # read above, by the next call for this object
    with contextlib.suppress(AttributeError, TypeError):  # not every object takes attributes
        setattr(thing, name, MethodType(calling, thing))
