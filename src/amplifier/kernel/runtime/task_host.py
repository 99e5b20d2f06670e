"""Host tasks for structured mounts, and background work owned by the session.

A structured module is an async context manager that may keep task groups and cancel scopes open; it therefore gets a task of
its own, in which it is entered and left. All such tasks live in the session's task group and are shielded from what happens around
the session: they are ended in the order of the cleanup stack, users before services, never all at once. Sits on `backend`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.abc

from amplifier.contracts._containment import is_cancellation_type
from amplifier.errors import SessionStateError, SpuriousCancellation

from .cleanup_stack import CleanupStack

logger = logging.getLogger("amplifier.session")

CrashReport = Callable[[str | None, str, BaseException, bool], Awaitable[None]]


class TaskHost:
    """The session's task group and what runs in it."""

    __slots__ = ("_cleanups", "_report_crash", "fatal", "group", "is_shut")

    def __init__(self, cleanups: CleanupStack, report_crash: CrashReport) -> None:
        self._cleanups = cleanups
        self._report_crash = report_crash
        self.group: anyio.abc.TaskGroup | None = None
        self.is_shut: bool = False
        """Everything has been cleaned up: what were started now, nobody would stop."""
        self.fatal: list[BaseException] = []
        """Crashes of background tasks that asked to end the session."""

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start kernel work beside the turn; the caller sees to it that it ends."""
        self._require_group("background work").start_soon(fn)

    def start_soon(
        self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], *, name: str, owner: str | None, fatal: bool
    ) -> None:
        """Start background work of a module; it is cancelled when the session closes.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
        """
        group = self._require_group(f"start_soon({name})")
        scope = anyio.CancelScope(shield=True)
        done = anyio.Event()

        async def stop() -> None:
            scope.cancel()
            await done.wait()

        entry = self._cleanups.push(stop, owner, what=f"background task {name!r}")

        async def run() -> None:
            try:
                with scope:
                    await fn(*args)
            except BaseException as exc:  # noqa: BLE001 — foreign code: a crash ends this task, not its neighbours
                await self._crashed(name, owner, exc, fatal)
            finally:
                if entry is not None:
                    self._cleanups.discard(entry)
                done.set()

        group.start_soon(run, name=f"{owner or 'application'}: {name}")

    async def host(
        self, manager: AbstractAsyncContextManager[Any], *, name: str, owner: str | None
    ) -> tuple[Any, Callable[[], Awaitable[None]]]:
        """Enter ``manager`` in a task of its own and keep it open until the returned function is awaited.

        Returns:
            What the manager yielded, and the function that leaves it (already on the cleanup stack).

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
            BaseException: What entering the manager raised.
        """
        group = self._require_group(f"the structured mount of {name!r}")
        host = _Host(manager, name, owner, self._crashed)
        group.start_soon(host.run, name=f"host of {name}")
        try:
            await host.entered.wait()
        except BaseException:
            # Cancelled while the module was still entering: it must be gone before we go on.
            with anyio.CancelScope(shield=True):
                await host.abandon()
            raise
        if host.error is not None:
            error, host.error = host.error, None
            raise error
        self._cleanups.push(host.leave, owner, what="structured mount")
        return host.value, host.leave

    def _require_group(self, what: str) -> anyio.abc.TaskGroup:
        if self.is_shut:
            raise SessionStateError(f"{what} comes too late: the session is closed")
        if self.group is None:
            raise SessionStateError(
                f"{what} needs the session's task group, which exists only inside `async with session:`; "
                "this session was opened with initialize(): open it with `async with` instead"
            )
        return self.group

    async def _crashed(self, name: str, owner: str | None, exc: BaseException, fatal: bool) -> None:
        # These tasks are shielded, so a cancellation that comes out of one was made by the module itself: a crash.
        if not isinstance(exc, Exception) and not is_cancellation_type(exc):
            fatal = True  # Ctrl-C and exit always end the session
        logger.error("background task %r of %s crashed: %s", name, owner or "the application", exc, exc_info=exc)
        if fatal:
            self.fatal.append(exc)
            if self.group is not None:
                self.group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._report_crash(owner, name, exc, fatal)


class _Host:
    """One structured module in its own task."""

    __slots__ = ("_crashed", "_done", "_left", "_manager", "_name", "_owner", "_scope", "entered", "error", "value")

    def __init__(
        self,
        manager: AbstractAsyncContextManager[Any],
        name: str,
        owner: str | None,
        crashed: Callable[[str, str | None, BaseException, bool], Awaitable[None]],
    ) -> None:
        self._manager = manager
        self._name = name
        self._owner = owner
        self._crashed = crashed
        self._scope = anyio.CancelScope(shield=True)
        self._left = anyio.Event()
        self._done = anyio.Event()
        self.entered = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                async with self._manager as self.value:
                    self.entered.set()
                    await self._left.wait()
        except BaseException as exc:  # noqa: BLE001 — foreign code: handed to whoever waits for it
            if is_cancellation_type(exc):  # shielded: the module made it up
                exc = SpuriousCancellation(f"{self._name!r} raised {type(exc).__name__} although nobody cancelled it")
            if self.entered.is_set() and not self._left.is_set():
                await self._crashed(self._name, self._owner, exc, False)
            else:
                self.error = exc
        finally:
            self._done.set()
            self.entered.set()

    async def leave(self) -> None:
        """Ask the module to leave and wait for it; when cancelled, cancel the module and wait all the same."""
        self._left.set()
        try:
            await self._done.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.abandon()
            raise
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    async def abandon(self) -> None:
        """Cancel the module and wait until it is gone."""
        self._left.set()
        self._scope.cancel()
        await self._done.wait()
