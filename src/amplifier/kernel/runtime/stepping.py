"""Awaiting something step by step, to learn whether it waits at all, or to give its steps a context of their own."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


@types.coroutine
def drive(awaitable: Any, *, context: Context | None = None, on_wait: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await something step by step: each step in ``context``, if one is given, and ``on_wait`` called at its first wait."""
    driven_by_hand = awaitable
    if type(awaitable) is not types.CoroutineType:
        if type(awaitable) is not types.GeneratorType:
            driven_by_hand = awaitable.__await__()
        if not (hasattr(driven_by_hand, "send") and hasattr(driven_by_hand, "throw")):
            on_wait()  # a plain iterator, which is allowed
            return (yield from driven_by_hand)
    answer: Any = None
    thrown: BaseException | None = None
    has_waited = False
    try:
        while True:
            try:
                step, given = (driven_by_hand.send, answer) if thrown is None else (driven_by_hand.throw, thrown)
                trap = step(given) if context is None else context.run(step, given)
            except StopIteration as end:
                return end.value
            answer = thrown = given = None
            try:
                if not has_waited:
                    has_waited = True
                    on_wait()
                answer = yield trap
            except GeneratorExit:
                driven_by_hand.close()
                raise
            except BaseException as exc:  # noqa: BLE001 — whatever the loop throws is for the one that waits
                thrown = exc
    finally:
        answer = thrown = trap = given = None  # an exception that names its own frame is a reference cycle
