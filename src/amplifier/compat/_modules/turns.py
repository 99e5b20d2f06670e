"""Running published code so that a cancellation reaches it once and does not interrupt its unwinding.

Published loops are written for asyncio's edge cancellation: the exception arrives once, they catch it, and then *await*:
they store the results of cancelled tools, emit ``cancel:*``, add a closing message, and raise it again. Inside a cancelled AnyIO
scope each of these awaits would be cancelled again. Here the code runs in a task of its own, which is cancelled by exactly one
``Task.cancel()``, whatever the source of the cancellation, and the caller waits until the task has ended. Trio has no edge
cancellation: there a plain scope is cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.kernel.runtime.sections import deliver_later, pending_cancellations

from .methods import put_around
from .streaming import providers_for


class PublishedTurn:
    """One run of published code.

    Args:
        is_shielded: A cancelled scope around it does not reach it; a cancelled task does, as with published code.

    Attributes:
        was_stopped: `stop` was called before the code ended, or its caller was cancelled.
        why_stopped: The reason that `stop` was given, for the text of the error.
    """

    __slots__ = ("_is_shielded", "_scope", "_task", "was_stopped", "why_stopped")

    def __init__(self, *, is_shielded: bool = False) -> None:
        self._is_shielded = is_shielded
        self._task: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self.was_stopped = False
        self.why_stopped: str | None = None

    def stop(self, why: str) -> None:
        """Cancel the code, once; from the loop's own thread."""
        if self.was_stopped:
            return
        self.was_stopped = True
        self.why_stopped = why
        if self._task is not None:
            self._task.cancel()
        elif self._scope is not None:
            self._scope.cancel()

    async def run(self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str) -> Any:
        """Run ``fn(*args)`` to its end.

        Returns:
            What ``fn`` returned; None if `stop` cut it off on trio.

        Raises:
            BaseException: What ``fn`` raised, or the caller's own cancellation once ``fn`` has unwound.
        """
        loop = running_asyncio_loop()
        if loop is None:
            self._scope = anyio.CancelScope(shield=self._is_shielded)
            with self._scope:
                return await fn(*args)
            return None
        outcome = _Outcome()
        task = self._task = loop.create_task(outcome.run(fn, args), name=name)
        caller = cast("asyncio.Task[Any]", asyncio.current_task())
        requests_before = pending_cancellations(caller)
        held: BaseException | None = None
        late: BaseException | None = None
        try:
            while not task.done():
                try:
                    # Once it is cancelled, a cancelled scope around us would not let us wait for it.
                    with anyio.CancelScope(shield=self._is_shielded or held is not None):
                        await _until_done(task, loop)
                except asyncio.CancelledError as exc:
                    by_scope = anyio.current_effective_deadline() == -math.inf
                    if self.was_stopped or task.done():
                        late = late if by_scope else exc
                    else:
                        self.was_stopped = True
                        task.cancel(*exc.args)
                    held = held or exc
            error = outcome.error
            if error is not None and not (held is not None and isinstance(error, asyncio.CancelledError)):
                if late is not None:
                    deliver_later(caller, late, requests_before)
                raise error
            if held is not None:
                raise held
            return outcome.value
        finally:
            held = late = None  # an exception that names its own frame is a reference cycle
            outcome.error = None
            self._task = None


def run_in_a_turn(orchestrator: Any) -> None:
    """Run the turns of an orchestrator in a native session as `PublishedTurn`; repeating it does nothing."""

    async def execute(call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        if "providers" in kwargs:
            kwargs["providers"] = providers_for(orchestrator, kwargs["providers"], kwargs.get("tools"))
        return await PublishedTurn().run(lambda: call(*args, **kwargs), name="amplifier published turn")

    put_around(orchestrator, "execute", execute, key="turn")


async def _until_done(task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for a task without passing our own cancellation on to it, which ``await task`` would do."""
    waiter = loop.create_future()

    def wake(_: asyncio.Task[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


class _Outcome:
    """The outcome of the code, handed to the waiting caller and never raised in the task."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

    async def run(self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        try:
            self.value = await fn(*args)
        except BaseException as exc:  # noqa: BLE001 — raised again by the caller
            self.error = exc
