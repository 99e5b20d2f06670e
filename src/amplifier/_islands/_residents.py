"""What needs one task for several calls: async generators and async context managers of the other side.

Their cancel scopes, task groups and timeouts belong to the task that opened them. A `Resident` is a task on the side of the
generator or manager that makes one step after another; the calls that ask for steps may come from any task. Written once, for
residents on the island and for residents on trio.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final

import anyio

from amplifier.contracts._containment import is_cancellation_type
from amplifier.errors import SessionStateError

from ._protocol import IslandProtocol

logger: logging.Logger = logging.getLogger("amplifier.islands")

CLOSING_SECONDS: Final = 10.0
"""How long a generator that is left early may take to close: the kernel's deadline of a cleanup."""

_END: Final = object()

Step = Callable[[], Awaitable[Any]]
Hop = Callable[..., Awaitable[Any]]
"""Calls a function on the other side and waits for it."""


class Resident:
    """A task that makes one step after another; made and asked on its own side. A step that raises is its last one.

    Args:
        island: Ends it at the latest.
        name: For reports.
        close: Awaited in the task when it is cancelled between two steps, with what cancelled it.

    Attributes:
        is_over: The task has ended.
    """

    def __init__(self, island: IslandProtocol, name: str, close: Callable[[BaseException], Awaitable[Any]]) -> None:
        self._island = island
        self._name = name
        self._close = close
        self._scope = anyio.CancelScope()
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._over = anyio.Event()
        self._step: Step | None = None
        self._is_last = False
        self._value: Any = None
        self._error: BaseException | None = None
        self.is_over: bool = False
        self._is_on_trio = island.is_on_trio()
        if self._is_on_trio:
            island.has_begun(self)
        island.spawn(self._live, name)

    def cancel(self) -> None:
        """Cancel the task."""
        self._scope.cancel()

    async def end(self) -> None:
        """Cancel the task and wait until it has ended."""
        self._scope.cancel()
        await self._over.wait()

    async def ask(self, step: Step, *, is_last: bool = False) -> Any:
        """Have the task make one step and wait for its outcome; a cancelled caller cancels the task and waits for its end.

        Raises:
            SessionStateError: The task has ended.
            BaseException: What the step raised.
        """
        if self.is_over:
            raise SessionStateError(f"{self._name} has ended already")
        self._step, self._is_last = step, is_last
        self._answered = anyio.Event()
        self._asked.set()
        try:
            await self._answered.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.end()
            raise
        error, self._error = self._error, None
        value, self._value = self._value, None
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # an exception that names its own frame is a reference cycle

    async def _live(self) -> None:
        try:
            with self._scope:
                while not self._is_last:
                    try:
                        await self._asked.wait()
                    except BaseException as exc:
                        await self._close(exc)
                        raise
                    self._asked = anyio.Event()
                    await self._make_step()
        except BaseException as exc:
            if not is_cancellation_type(exc):
                logger.exception("%s failed while it was closed", self._name)
        finally:
            self.is_over = True
            self._over.set()
            self._answered.set()
            if self._is_on_trio:
                self._island.has_left(self)

    async def _make_step(self) -> None:
        step, self._step = self._step, None
        assert step is not None
        try:
            self._value = await step()
        except BaseException as exc:  # noqa: BLE001 — raised by the caller of `ask`
            self._error = exc
            self._is_last = True
        self._answered.set()


async def stream(
    island: IslandProtocol, hop: Hop, iterator: Any, wrap: Callable[[Any], Any]
) -> AsyncGenerator[Any, None]:
    """Iterate an async iterator of the other side; it is asked for one item at a time."""

    async def close(exc: BaseException | None = None) -> None:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()

    async def advance() -> Any:
        return await anext(iterator, _END)

    residents: list[Resident] = []
    try:
        await hop(lambda: residents.append(Resident(island, f"stream {iterator!r}", close)))
        while (item := await hop(residents[0].ask, advance)) is not _END:
            yield wrap(item)
    finally:
        if residents and not residents[0].is_over:
            with anyio.move_on_after(CLOSING_SECONDS, shield=True):
                await hop(residents[0].ask, close, is_last=True)


class Manager:
    """An async context manager of the other side, as one that is entered here; it is entered and left in one task there."""

    __slots__ = ("_hop", "_island", "_manager", "_residents", "_wrap")

    def __init__(self, island: IslandProtocol, hop: Hop, manager: Any, wrap: Callable[[Any], Any]) -> None:
        self._island = island
        self._hop = hop
        self._manager = manager
        self._wrap = wrap
        self._residents: list[Resident] = []

    async def __aenter__(self) -> Any:
        manager, kind = self._manager, type(self._manager)
        is_entered = False

        async def enter() -> Any:
            nonlocal is_entered
            value = await kind.__aenter__(manager)
            is_entered = True
            return value

        async def close(exc: BaseException) -> None:
            if is_entered:
                await kind.__aexit__(manager, type(exc), exc, exc.__traceback__)

        residents = self._residents
        try:
            await self._hop(lambda: residents.append(Resident(self._island, repr(manager), close)))
            return self._wrap(await self._hop(residents[0].ask, enter))
        except BaseException:
            if residents and not residents[0].is_over:
                with anyio.move_on_after(CLOSING_SECONDS, shield=True):
                    await self._hop(residents[0].end)
            residents.clear()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        manager = self._manager

        async def leave() -> bool:
            return bool(await type(manager).__aexit__(manager, kind, exc, traceback))

        return bool(await self._hop(self._residents.pop().ask, leave, is_last=True))
