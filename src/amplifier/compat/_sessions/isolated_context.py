"""Running a handler in a copy of its caller's context variables: it reads them, and what it sets does not leak.

The published kernel runs every handler in a task of its own. Here a handler runs in the caller's task, so that a cancellation
reaches it; its context variables are isolated all the same, because tracing modules attach and detach theirs in handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any

from amplifier.contracts import contained_failure


class IsolatedHandler:
    """A handler whose calls do not leak context variables."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, event: str, data: Any) -> Any:
        context = copy_context()
        try:
            answer = context.run(self.handler, event, data)
        except SystemExit as exc:  # in the published kernel only an async handler's exit ends the program
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
