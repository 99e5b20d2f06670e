"""A handler in a copy of its caller's context variables: it sees them, and what it sets is its own.

The published kernel runs every handler in a task of its own. Here it runs in the caller's, which is what lets a cancellation
reach it; its variables are kept apart all the same, because tracing modules attach and detach theirs in handlers. Above: `_hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any

from amplifier.contracts import contained_failure


class Apart:
    """A handler whose calls do not leak context variables."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, event: str, data: Any) -> Any:
        context = copy_context()
        try:
            answer = context.run(self.handler, event, data)
        except SystemExit as exc:  # published, only an async handler's exit ends the program
            raise contained_failure(exc) from exc
        return _Driven(answer, context) if type(answer) is CoroutineType else answer

    def __repr__(self) -> str:
        return repr(self.handler)


class _Driven:
    """Awaits a coroutine step by step in a context."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine = self._context.run, self._coroutine
        step: Callable[[Any], Any] = coroutine.send
        argument: Any = None
        while True:
            try:
                awaited = run(step, argument)
            except StopIteration as stop:
                return stop.value
            try:
                argument = yield awaited
                step = coroutine.send
            except GeneratorExit:
                run(coroutine.close)
                raise
            except BaseException as exc:  # noqa: BLE001 — thrown into the coroutine, which decides
                step, argument = coroutine.throw, exc
