"""One call between trio and an island's asyncio loop.

`Visit` is a call from trio into the island, `Errand` one from the island into trio, `call_trio_now` a sync one into trio. A caller
always waits until the other side has ended, also when it is cancelled: then the other side is cancelled first. Nothing on trio ever
blocks on the island, so calls may be nested to any depth without a deadlock. What a call sets in context variables is seen by its
caller afterwards, as if both were one task.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, Final

import anyio
import sniffio
import trio

from amplifier.contracts._containment import is_cancellation_type
from amplifier.errors import SpuriousCancellation

from ._protocol import IslandProtocol

_LOOK: Final = 1.0
"""Seconds between two looks at whether trio still runs, while a thread waits for it."""
_MISSING: Final = object()


class Visit:
    """A call from a trio task into the island."""

    __slots__ = (
        "_args",
        "_context",
        "_error",
        "_fn",
        "_is_cancelled",
        "_is_over",
        "_island",
        "_kwargs",
        "_raise_cancel",
        "_scope",
        "_value",
        "_waiting",
        "task",
    )

    def __init__(
        self, island: IslandProtocol, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._island = island
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._context = context_for("asyncio")
        self._waiting = trio.lowlevel.current_task()
        self._scope: anyio.CancelScope | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._raise_cancel: Callable[[], Any] | None = None
        self._is_cancelled = False
        self._is_over = False
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> Any:
        """Wait for the call; a cancellation of the waiting task is passed on, and its end waited for."""
        visits = self._island.visits
        visits.add(self)
        try:
            self._island.post(self._start)
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            visits.discard(self)
        take_changes(self._context)
        error, self._error = self._error, None
        try:
            if error is None:
                return self._value
            if is_cancellation_type(error) and self._raise_cancel is not None:
                self._raise_cancel()
            raise error
        finally:
            del error  # an exception that names its own frame is a reference cycle
            self._value = self._raise_cancel = None

    def fail(self, error: BaseException) -> None:
        """Wake the caller with an error; on trio's thread."""
        self._error = error
        self._wake()

    def _abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._raise_cancel = raise_cancel  # of a scope, or of Ctrl-C
        self._island.post(self._cancel)
        return trio.lowlevel.Abort.FAILED

    def _wake(self) -> None:
        if not self._is_over:
            self._is_over = True
            trio.lowlevel.reschedule(self._waiting)

    # ── on the island ──

    def _start(self) -> None:
        self.task = asyncio.Task(self._run(), loop=self._island.loop, name=_name_of(self._fn), context=self._context)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        # A scope and not Task.cancel(): asyncio-only modules are cancelled as the kernel cancels them on asyncio.
        is_done = False
        try:
            with anyio.CancelScope() as self._scope:
                if self._is_cancelled:
                    self._scope.cancel()
                answer = self._fn(*self._args, **self._kwargs)
                self._value = await answer if isawaitable(answer) else answer
                is_done = True
        except BaseException as exc:  # noqa: BLE001 — raised by the waiting task
            self._error = self._judged(exc)
        else:
            if not is_done:
                self._error = asyncio.CancelledError()
        finally:
            self._scope = None
            self._island.post_to_trio(self._wake)

    def _judged(self, exc: BaseException) -> BaseException:
        """What an exception of the call means to the waiting task."""
        if isinstance(exc, GeneratorExit) or (is_cancellation_type(exc) and self._island.is_stopping):
            return self._island.closed_error(exc)
        if not is_cancellation_type(exc) or self._is_cancelled:
            return exc
        return _spurious(exc)


class Errand:
    """A call from an asyncio task on the island into trio."""

    __slots__ = (
        "_args",
        "_context",
        "_error",
        "_fn",
        "_is_over",
        "_island",
        "_kwargs",
        "_scope",
        "_value",
        "_waiter",
    )

    def __init__(
        self, island: IslandProtocol, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._island = island
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._context = context_for("trio")
        self._scope: trio.CancelScope | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_over = False

    async def run(self) -> Any:
        """Wait for the call; a cancellation of the waiting task, native or by a scope, is passed on, and its end waited for.

        The call begins even if the task is cancelled already, as a call on trio would: it is cut off at its first wait
        unless it is shielded. So what is emitted while a module unwinds is delivered, and what a call returns in a
        cancelled scope is not lost: the scope cancels the task again at its next wait. A native cancel comes only once.
        """
        held: BaseException | None = None
        is_native = False
        self._island.post_to_trio(self._start)
        try:
            while not self._is_over:
                self._waiter = self._island.loop.create_future()
                try:
                    with anyio.CancelScope(shield=held is not None):
                        await self._waiter
                except asyncio.CancelledError as exc:
                    is_native = is_native or held is not None or anyio.current_effective_deadline() != -math.inf
                    if held is None:
                        self._island.post_to_trio(self.cancel)
                    held = exc
            take_changes(self._context)
            is_cut_off = self._error is not None and is_cancellation_type(self._error)
            if held is not None and (is_cut_off or (is_native and self._error is None)):
                raise held
            if self._error is not None:
                raise _spurious(self._error) if is_cancellation_type(self._error) else self._error
            return self._value
        finally:
            held = self._error = self._value = None  # an exception that names its own frame is a reference cycle

    def _wake(self) -> None:
        self._is_over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ── on trio ──

    def cancel(self) -> None:
        """Cancel the call."""
        if self._scope is not None:
            self._scope.cancel()

    def _start(self) -> None:
        self._scope = trio.CancelScope()
        self._island.has_begun(self)
        # The system nursery is the parent in name only: the island ends all its errands before the session is closed.
        trio.lowlevel.spawn_system_task(self._serve, name=f"island call {_name_of(self._fn)}", context=self._context)

    async def _serve(self) -> None:
        assert self._scope is not None
        is_done = False
        try:
            with self._scope:
                answer = self._fn(*self._args, **self._kwargs)
                self._value = await answer if isawaitable(answer) else answer
                is_done = True
        except BaseException as exc:  # noqa: BLE001 — raised by the waiting task
            self._error = exc
        else:
            if not is_done:
                self._error = asyncio.CancelledError()
        finally:
            self._island.has_left(self)
            self._island.post(self._wake)


def call_trio_now(
    island: IslandProtocol, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call something sync on trio's thread, from any other one, and wait for it.

    Raises:
        SessionStateError: Trio has ended.
        BaseException: What the call raised.
    """
    context = context_for("trio")
    done = threading.Event()
    values: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(context.run(fn, *args, **kwargs))
        except BaseException as exc:  # noqa: BLE001 — raised by the waiting thread
            errors.append(exc)
        finally:
            done.set()

    island.post_to_trio(run)
    while not done.wait(_LOOK):
        island.post_to_trio(_nothing)  # raises when trio has ended
    take_changes(context)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()
    return values[0]


def context_for(library: str) -> contextvars.Context:
    """A copy of the caller's context variables for code that runs on the other side."""
    context = contextvars.copy_context()
    context.run(sniffio.current_async_library_cvar.set, library)  # AnyIO asks it before it looks for a loop
    return context


def take_changes(context: contextvars.Context) -> None:
    """Set the context variables that were changed on the other side."""
    here = contextvars.copy_context()
    for variable, value in context.items():
        if here.get(variable, _MISSING) is not value and variable is not sniffio.current_async_library_cvar:
            variable.set(value)


def _spurious(exc: BaseException) -> SpuriousCancellation:
    failure = SpuriousCancellation(
        f"raised {type(exc).__name__} although nothing was cancelled; it may have awaited a future or task that was"
    )
    failure.__cause__ = exc
    return failure


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))


def _nothing() -> None:
    return None
