"""Host tasks for structured mounts, and background work owned by the session.

A structured module is an async context manager that may keep task groups and cancel scopes open; it therefore gets a task of
its own, in which it is entered and left. All such tasks live in the session's task group and are shielded from what happens around
the session, the end of the event loop included: they are ended in the order of the cleanup stack, users before services, never
all at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from amplifier.contracts._containment import contained_failure, is_cancellation_type, text_of
from amplifier.errors import SessionStateError, SpuriousCancellation

from .backend import start_timer
from .cleanup_stack import CleanupEntry, CleanupStack
from .running_call import RunningCall
from .sections import run_section

logger: logging.Logger = logging.getLogger("amplifier.session")

_ROUNDS_TO_BEGIN = 2
"""Turns of the loop after which a new task has made its first step, on every backend, if it ever will."""

PATIENCE = 30.0
"""Seconds that a task waits at the end of the loop for its session to close, where no ``deadlines.teardown`` is set."""


class HostReports(Protocol):
    """Where a host reports, and what it asks of its session; one object, which takes less memory than two bound methods."""

    @property
    def coordinator(self) -> Any:
        """Whose tasks these are."""

    def patience(self) -> float:
        """How long a task waits for its session to close when the event loop ends."""

    async def crash(self, module: str | None, task: str, error: BaseException, fatal: bool) -> None:
        """A background task or a structured module has crashed."""


class TaskHost:
    """The session's task group and what runs in it."""

    __slots__ = ("_cleanups", "_group", "_is_shut", "fatal", "reports")

    def __init__(self, cleanups: CleanupStack, reports: HostReports) -> None:
        self._cleanups = cleanups
        self.reports: HostReports = reports
        self._group: anyio.abc.TaskGroup | None = None
        self._is_shut = False
        self.fatal: list[BaseException] = []
        """Crashes of background tasks that asked to end the session."""

    @property
    def coordinator(self) -> Any:
        """Whose tasks these are."""
        return self.reports.coordinator

    @property
    def group(self) -> anyio.abc.TaskGroup | None:
        """The session's task group; None outside ``async with session:``."""
        return self._group

    @property
    def is_shut(self) -> bool:
        """Whether everything has been cleaned up: no one would stop what were started now."""
        return self._is_shut

    @property
    def takes_work(self) -> bool:
        """Whether something can be started beside the turns now."""
        return self._group is not None and not self._is_shut

    def use_group(self, group: anyio.abc.TaskGroup | None) -> None:
        """Run everything in ``group`` from now on."""
        self._group = group

    def reopen(self) -> None:
        """The session opens: work may be started again."""
        self._is_shut = False

    def shut(self) -> None:
        """The session is closed: refuse whatever comes from now on."""
        self._is_shut = True

    async def leave_group(self, exc: BaseException | None, session_id: str) -> bool:
        """Leave the task group, in which nothing runs any more; True when ``exc`` was only our own way of stopping.

        An exception is handed to the group only when the group's own scope was cancelled, by a crashed background task that
        asked to end the session; otherwise the group would wrap it, and errors keep their type (L9).
        """
        group, self._group = self._group, None
        if group is None:
            return False
        others: list[BaseException] = []
        was_ended = group.cancel_scope.cancel_called
        try:
            if exc is None or not was_ended:
                await group.__aexit__(None, None, None)
            else:
                await group.__aexit__(type(exc), exc, exc.__traceback__)
        except BaseExceptionGroup as wrapped:  # on trio, Ctrl-C that arrived while the group was left
            others = list(wrapped.exceptions)
        crashes, self.fatal = self.fatal, []
        if not crashes and not others:
            return was_ended
        if len(crashes) + len(others) == 1:
            raise [*crashes, *others][0]
        what = f"session {session_id!r} was ended by crashed background work"
        raise BaseExceptionGroup(what, [*crashes, *others])

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
        work = BackgroundTask(fn, args, name, owner, fatal, self)
        work.entry = self._cleanups.push(work.stop, owner, what=f"background task {name!r}")
        group.start_soon(work.run, name=f"{owner or 'application'}: {name}")

    async def host(self, manager: AbstractAsyncContextManager[Any], *, name: str, owner: str | None) -> HostTask:
        """Enter ``manager`` in a task of its own; if that is cancelled, the manager is gone before this returns.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
            BaseException: What entering the manager raised.
        """
        host = self.start_host(manager, name=name, owner=owner)
        try:
            await self.enter(host)
        except BaseException:
            if host.entry is not None:
                name = f"amplifier {host.entry}"
                await run_section(self._clean_up_now, host.entry, name=name, shield=True, isolate=True)
            raise
        return host

    async def _clean_up_now(self, entry: CleanupEntry) -> None:
        coordinator = self.coordinator
        await self._cleanups.run_now(entry, coordinator.deadlines.cleanup, coordinator.watch)

    def start_host(self, manager: AbstractAsyncContextManager[Any], *, name: str, owner: str | None) -> HostTask:
        """Enter ``manager`` in a task of its own and keep it open until it is left; `enter` waits for it.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
        """
        group = self._require_group(f"the structured mount of {name!r}")
        host = HostTask(manager, name, owner, self)
        group.start_soon(host.run, name=f"host of {name}")
        return host

    async def enter(self, host: HostTask) -> Any:
        """Wait until a manager has entered; leaving it is on the cleanup stack then, also if the wait was cancelled.

        Returns:
            What the manager yielded.

        Raises:
            BaseException: What entering the manager raised.
        """
        try:
            await host.entered.wait()
        except BaseException:  # it ends or leaves by itself now; the cleanup waits until it is gone
            host.entry = self._cleanups.push(host.leave, host.owner, what="structured mount")
            host.withdraw()
            raise
        if host.error is not None:
            error, host.error = host.error, None
            raise error
        host.entry = self._cleanups.push(host.leave, host.owner, what="structured mount")
        return host.value

    def _require_group(self, what: str) -> anyio.abc.TaskGroup:
        if self._is_shut:
            raise SessionStateError(f"{what} comes too late: the session is closed")
        if self._group is None:
            raise SessionStateError(
                f"{what} needs the session's task group, which exists only inside `async with session:`; "
                "this session was opened with initialize(): open it with `async with` instead"
            )
        return self._group

    def forget(self, entry: CleanupEntry | None) -> None:
        """Background work has ended by itself: the closing need not stop it."""
        if entry is not None:
            self._cleanups.discard(entry)

    async def crashed(self, name: str, owner: str | None, exc: BaseException, fatal: bool) -> None:
        """Report a task that raised, and end the session if it asked for that."""
        try:
            # These tasks are shielded, so a cancellation that comes out of one was made by the module itself: a crash.
            error = exc if is_cancellation_type(exc) else contained_failure(exc)
        except BaseException as interrupt:  # noqa: BLE001 — Ctrl-C ends the session, which raises it
            error, fatal = interrupt, True
        logger.error(
            "background task %r of %s crashed: %s", name, owner or "the application", text_of(error), exc_info=error
        )
        if fatal:
            self.fatal.append(error)
            if self._group is not None:
                self._group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.reports.crash(owner, name, error, fatal)


hosted_by: ContextVar[tuple[TaskHost, ...]] = ContextVar("amplifier_hosted_by", default=())
"""The sessions in whose structured modules the current task runs."""


class SessionTask:
    """A task of the session's group that only the session ends.

    On asyncio its work is a section of its own: a native cancel, as the end of the loop sends to every task in its list, waits until
    the work has been ended in its turn. A task that was cancelled before its first step never begins; waiting for it would not end.
    """

    __slots__ = ("_done", "_has_begun", "_host", "_is_abandoned", "_name", "_owner", "_scope")

    def __init__(self, name: str, owner: str | None, host: TaskHost) -> None:
        self._name = name
        self._owner = owner
        self._host = host
        self._scope = anyio.CancelScope(shield=True)
        self._done = anyio.Event()
        self._has_begun = False
        self._is_abandoned = False

    def running_call(self) -> RunningCall:
        """Whose work this is."""
        return RunningCall(coordinator=self._host.coordinator, label=self.describe(), module=self._owner)

    async def run(self) -> None:
        """The body of the task."""
        if self._is_abandoned:
            return
        self._has_begun = True
        try:
            await run_section(self._work, name=self.describe(), shield=True, on_held=self._end_in_time)
        except BaseException as exc:
            # Held back until the work was over. The task ends here anyway, and its group would take it for a failure.
            if not is_cancellation_type(exc):
                raise

    async def _work(self) -> None:
        raise NotImplementedError

    def describe(self) -> str:
        """What the task does, in words."""
        raise NotImplementedError

    def _end_in_time(self) -> None:
        """The loop is ending: the session ends this work when it closes; if no one closes it, it ends by itself."""
        start_timer(self._host.reports.patience(), self._cancel, None)

    def _cancel(self) -> None:
        self._scope.cancel()

    async def _end(self) -> None:
        """Cancel the work and wait until it is gone."""
        self._cancel()
        if await self._begins():
            await self._done.wait()

    async def _begins(self) -> bool:
        """Whether the task has made its first step; if not, it does nothing any more."""
        for _ in range(_ROUNDS_TO_BEGIN):
            if not self._has_begun:
                await anyio.lowlevel.cancel_shielded_checkpoint()
        self._is_abandoned = not self._has_begun
        return self._has_begun


class BackgroundTask(SessionTask):
    """Work that a module started beside the turns."""

    __slots__ = ("_args", "_fatal", "_fn", "entry")

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        name: str,
        owner: str | None,
        fatal: bool,
        host: TaskHost,
    ) -> None:
        super().__init__(name, owner, host)
        self._fn = fn
        self._args = args
        self._fatal = fatal
        self.entry: CleanupEntry | None = None

    def describe(self) -> str:
        """What the task does, in words."""
        return f"background task {self._name!r}"

    async def _work(self) -> None:
        try:
            with self._scope:
                await self._fn(*self._args)
        except BaseException as exc:  # noqa: BLE001 — foreign code: a crash ends this task, not its neighbours
            await self._host.crashed(self._name, self._owner, exc, self._fatal)
        finally:
            self._host.forget(self.entry)
            self._done.set()

    async def stop(self) -> None:
        """Cancel the work and wait until it is gone."""
        await self._end()


class HostTask(SessionTask):
    """One structured module in its own task.

    The scope of the task is cancelled when the opening is: that ends a module which is entering. One that has entered is in a
    second scope, which is shielded from then on, and cancelled only if it does not leave in time.
    """

    __slots__ = ("_inside", "_left", "_manager", "entered", "entry", "error", "value")

    def __init__(self, manager: AbstractAsyncContextManager[Any], name: str, owner: str | None, host: TaskHost) -> None:
        super().__init__(name, owner, host)
        self._manager = manager
        self._inside = anyio.CancelScope()
        self._left = anyio.Event()
        self.entered: anyio.Event = anyio.Event()
        self.entry: CleanupEntry | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def describe(self) -> str:
        """What the task does, in words."""
        return f"structured mount of {self._name!r}"

    async def _work(self) -> None:
        hosted_by.set((*hosted_by.get(), self._host))
        try:
            with self._scope, self._inside:
                async with self._manager as self.value:
                    self._inside.shield = True
                    self.entered.set()
                    await self._left.wait()
        except BaseException as exc:  # noqa: BLE001 — foreign code: handed to whoever waits for it
            error = exc
            if is_cancellation_type(exc):  # shielded: the module made it up
                error = SpuriousCancellation(
                    f"{self._name!r} raised {type(exc).__name__} although nothing was cancelled"
                )
            if self.entered.is_set() and not self._left.is_set():
                await self._host.crashed(self._name, self._owner, error, False)
            else:
                self.error = error
        finally:
            self._done.set()
            self.entered.set()

    def _cancel(self) -> None:
        self._scope.cancel()
        self._inside.cancel()

    @property
    def owner(self) -> str | None:
        """The module that it belongs to."""
        return self._owner

    def withdraw(self) -> None:
        """Cancel the entering; a module that enters all the same leaves at once."""
        self._left.set()
        self._scope.cancel()

    async def leave(self) -> None:
        """Ask the module to leave and wait for it; when cancelled, cancel the module and wait all the same."""
        self._left.set()
        if not await self._begins():
            return
        try:
            await self._done.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        if self.error is not None:
            error, self.error = self.error, None
            raise error
