"""The same order of events in every asyncio run, chosen by a seed.

asyncio's ready queue is first in, first out, so order can only vary where code iterates over a set: asyncio and AnyIO
keep tasks and cancel scopes in sets, and those hash by memory address. Inside a trial both hash by a number drawn from
a seeded generator instead: one seed gives one order in which siblings learn of a cancellation, another seed another.
trio needs none of this; it has a switch for deterministic scheduling (see `trio_trial`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from .injection import CURRENT_INJECTION

__all__ = ["OrderedTask", "ordered_cancel_scopes"]

_HASH_BITS = 60


@final
class OrderedTask(asyncio.Task[Any]):
    """An asyncio task whose place in a set does not depend on its address."""

    def __init__(self, coro: Any, *, order: random.Random, **options: Any) -> None:
        self._place = order.getrandbits(_HASH_BITS)  # before the base class, which puts the task into a set at once
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._place


@contextmanager
def ordered_cancel_scopes(scope_class: Any, order: random.Random) -> Iterator[None]:
    """Let AnyIO's cancel scopes made by a scenario hash by seed rather than by address.

    The class is not ours, so it is changed only for the length of a trial and only for scopes of the scenario; scopes
    of other loops in the same process keep the hash they were born with. A class that has become different from what
    we know is left alone; that costs us reproducible order among sibling scopes, nothing else.
    """
    places: dict[int, int] = {}
    original_new = vars(scope_class).get("__new__")

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:  # not ``__init__``: `anyio.CancelScope` calls that twice
        scope = original_new.__func__(cls, *args, **kwargs)
        if CURRENT_INJECTION.get() is None:
            places.pop(id(scope), None)  # the address may have belonged to a scope of the scenario that is gone
        else:
            places[id(scope)] = order.getrandbits(_HASH_BITS)
        return scope

    def place(scope: Any) -> int:
        return places.get(id(scope)) or object.__hash__(scope)

    if scope_class.__hash__ is not object.__hash__ or original_new is None:
        yield
        return
    scope_class.__new__ = new
    scope_class.__hash__ = place
    try:
        yield
    finally:
        scope_class.__new__ = original_new
        del scope_class.__hash__
