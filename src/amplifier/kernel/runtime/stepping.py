"""Whether something waits at all: seen in its code beforehand, or by awaiting it step by step, which also gives its steps a context."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextvars import Context
from inspect import CO_COROUTINE
from opcode import opmap
from typing import Any

_SEND = opmap.get("SEND")
"""The instruction of every ``await``, ``async for`` and ``async with``."""


def function_of(called: Any) -> types.FunctionType | None:
    """The function that something is, or is a method of; None for other callables, also those that look like one."""
    function = called.__func__ if type(called) is types.MethodType else called
    return function if type(function) is types.FunctionType else None


def never_waits(called: Any) -> bool:
    """Whether this is an async function whose coroutines end with their first step, because its code awaits nothing.

    Like a plain function, it cannot be cut off, so that no scope is needed for its deadline. False if that is not known.
    """
    function = function_of(called)
    if function is None or _SEND is None:
        return False
    code = function.__code__
    return bool(code.co_flags & CO_COROUTINE) and _SEND not in code.co_code[::2]


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
