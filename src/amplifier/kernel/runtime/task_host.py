"""The session's task group: background tasks, and the host tasks of structured modules."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from amplifier.contracts import Coordinator
from amplifier.contracts.cancellation import (
    cancel_scope,
    contained_failure,
    is_real_cancellation,
    text_of,
)
from amplifier.errors import SessionStateError
from amplifier.events import MODULE_CRASHED, MODULE_UNRESPONSIVE

from .child import ki_protected
from .cleanup import CleanupEntry, CleanupStack
from .deadlines import failure_text
from .frames import WaitInfo
from .loop import exit_details
from .watchdog import Unresponsive

logger: logging.Logger = logging.getLogger("amplifier.session")

MAX_LATE_CALLS = 32
"""Maximum number of late calls kept for the stop report."""

ROUNDS_TO_BEGIN = 2
"""Rounds of the event loop within which a new task takes its first step, if it ever does."""

hosted_by: ContextVar[tuple[TaskHost, ...]] = ContextVar("amplifier_hosted_by", default=())
"""Sessions with a structured module in which the current task runs."""


class TaskOwner(Coordinator, Protocol):
    """The coordinator of a session, which owns its tasks."""

    async def clean_up(self, owner: str | CleanupEntry | None) -> None:
        """Run the cleanups of one module, one step, or all."""


# A structured module is an async context manager that may keep task groups and cancel scopes open.
# These must be exited in the task that entered them, so each module has its own task. These tasks
# and the background tasks live in the session's task group, in shielded scopes: cancelling the code
# around the session doesn't end all of them at once. They end in the order of the cleanup stack,
# users before services. Only an ending asyncio loop, which cancels every task, ignores this order.


class TaskHost:
    """Runs the session's background tasks and host tasks, and reports their failures.

    Attributes:
        cleanups: The cleanup stack of the session.
        group: The session's task group. None outside ``async with session:``.
        is_shut: True once everything is cleaned up and nothing would stop new work.
        running: The tasks that haven't ended.
        fatal: Errors of background tasks that were started with ``fatal`` and have crashed.
        late: Calls that continued after their cancellation. Each entry has the time of the report,
            the module, the operation, and the seconds that the call was overdue.
    """

    __slots__ = ("_coordinator", "cleanups", "fatal", "group", "is_shut", "late", "running")

    def __init__(self, cleanups: CleanupStack, coordinator: TaskOwner) -> None:
        self.cleanups: CleanupStack = cleanups
        # A strong reference would be a cycle, which only the garbage collector could free.
        self._coordinator = weakref.ref(coordinator)
        self.group: anyio.abc.TaskGroup | None = None
        self.is_shut: bool = False
        # A dict as a set, which takes a quarter of the memory while it is empty.
        self.running: dict[SessionTask, None] = {}
        self.fatal: list[BaseException] = []
        self.late: list[tuple[float, str | None, str, float]] = []

    @property
    def coordinator(self) -> TaskOwner | None:
        """The session's coordinator, or None if it was collected."""
        return self._coordinator()

    @property
    def takes_work(self) -> bool:
        """True if tasks can be started alongside the turns."""
        return self.group is not None and not self.is_shut

    async def leave_group(self, exc: BaseException | None, session_id: str) -> bool:
        """Exit the task group, in which nothing runs anymore.

        The exception is handed to the group only if the group's scope was cancelled, by a
        background task that ended the session. Otherwise the group would wrap it (L9).

        Returns:
            True if ``exc`` is only the cancellation with which such a task ended the session.
        """
        group = self.group
        if group is None:
            return False
        was_ended = group.cancel_scope.cancel_called
        for task in list(self.running):  # its cleanup was interrupted
            task.cancel()
        self.group = None
        # A crash is raised once, even if the caller is cancelled. In that case the cancellation
        # comes first.
        raised, self.fatal = self.fatal, []
        try:
            try:
                await group.__aexit__(*exit_details(exc if was_ended else None))
            except BaseExceptionGroup as wrapped:  # a KeyboardInterrupt
                raised += wrapped.exceptions
            if not raised:
                return was_ended
            if len(raised) == 1 or all(isinstance(error, KeyboardInterrupt) for error in raised):
                raise raised[0]
            raise BaseExceptionGroup(
                f"session {session_id!r} was ended by crashed background work", raised
            )
        finally:
            # Break the reference cycle with the traceback.
            del exc, raised

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]], name: str | None = None) -> None:
        """Start work of the kernel alongside the turn.

        The work must end before the session is closed.
        """
        self._require_group("background work").start_soon(fn, name=name)

    def start_soon(
        self,
        fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        *,
        name: str,
        owner: str | None,
        fatal: bool,
    ) -> None:
        """Start background work for a module. The work is cancelled when the session closes.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
        """
        group = self._require_group(f"start_soon({name})")
        task = BackgroundTask(fn, args, name, owner, fatal, self)
        task.entry = self.cleanups.push(task.end, owner, what=f"background task {name!r}")
        self.running[task] = None
        group.start_soon(task.run, name=f"{owner or 'application'}: {name}")

    async def host(
        self,
        manager: AbstractAsyncContextManager[object],
        *,
        name: str,
        owner: str | None,
        is_mount: bool = False,
    ) -> HostTask:
        """Enter ``manager`` in a separate task.

        If entering fails or is cancelled, the manager has exited before this raises. The manager of
        a structured mount then stays on the cleanup stack, and undoing the module exits it.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
            BaseException: The error of entering the manager.
        """
        group = self._require_group(f"the structured mount of {name!r}")
        task = HostTask(manager, name, owner, self)
        entry = task.entry = self.cleanups.push(task.leave, owner, what="structured mount")
        self.running[task] = None
        # TaskGroup.start() isn't an alternative. It waits indefinitely for a task that is cancelled
        # before its first step, and would cancel a module at its ``yield``.
        group.start_soon(task.run, name=f"host of {name}")
        try:
            await task.entered.wait()
        except BaseException:
            # The manager unwinds before the cleanups that it has registered so far.
            self.cleanups.move_up(entry)
            coordinator = self.coordinator
            if not is_mount and coordinator is not None:
                await coordinator.clean_up(entry)
            raise
        if not task.is_inside:
            self.cleanups.discard(entry)
            task.raise_error()
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise SessionStateError(f"{name!r} was not entered: the session is being closed")
        # The manager exits before the cleanups that it registered on entry.
        self.cleanups.move_up(entry)
        return task

    def _require_group(self, operation: str) -> anyio.abc.TaskGroup:
        if self.is_shut:
            raise SessionStateError(f"{operation} comes too late: the session is closed")
        if self.group is None:
            raise SessionStateError(
                f"{operation} needs the session's task group, which exists only inside "
                "`async with session:`; this session was opened with initialize(): open it with "
                "`async with` instead"
            )
        return self.group

    def end_session(self, error: BaseException) -> None:
        """End the session. It raises the error on exit."""
        self.fatal.append(error)
        if self.group is not None:
            self.group.cancel_scope.cancel()

    async def crashed(
        self, name: str, owner: str | None, error: BaseException, fatal: bool
    ) -> None:
        """Report a task that raised. End the session if the task was started with ``fatal``."""
        logger.error(
            "background task %r of %s crashed: %s",
            name,
            owner or "the application",
            text_of(error),
            exc_info=error,
        )
        if fatal:
            self.end_session(error)
        if (coordinator := self.coordinator) is not None:
            details = {
                "module_id": owner,
                "task": name,
                "error": failure_text(error),
                "error_type": type(error).__name__,
                "fatal": fatal,
            }
            with cancel_scope(shield=True):
                await coordinator.hooks.emit(MODULE_CRASHED, details)

    def unresponsive(self, report: Unresponsive) -> None:
        """Log a call that continues after its deadline and emit ``module:unresponsive``."""
        module, operation = describe_label(report.label)
        late = f"{operation}, which waits at {report.where}"
        self.late = [
            *self.late[1 - MAX_LATE_CALLS :],
            (time.monotonic(), module, late, report.overdue),
        ]
        times = f"it had {report.seconds:g} s and is {report.overdue:.0f} s over"
        logger.error(
            "%s does not react to its cancellation: %s; task %r waits at %s",
            operation,
            times,
            report.task,
            report.where,
        )
        coordinator = self.coordinator
        if coordinator is None or not self.takes_work:
            return
        details = {
            "module_id": module,
            "operation": operation,
            "task": report.task,
            "awaiting": report.where,
            "seconds": report.seconds,
        }

        async def announce() -> None:
            with cancel_scope(shield=True):
                await coordinator.hooks.emit(MODULE_UNRESPONSIVE, details)

        self.spawn(announce)


def describe_label(label: object) -> tuple[str | None, str]:
    """Return the module and a description of a call under a deadline.

    A label is text, or a kernel object with an attribute ``module``.
    """
    return getattr(label, "module", None), str(label)


class SessionTask:
    """A task of the session's group. Only the session, or an ending asyncio loop, cancels it.

    Attributes:
        entry: The step of the closing that ends the task. None once the task has ended.
    """

    __slots__ = ("_done", "_has_begun", "_host", "_name", "_owner", "_scope", "_what", "entry")

    def __init__(self, what: str, name: str, owner: str | None, host: TaskHost) -> None:
        self._what = what
        self._name = name
        self._owner = owner
        self._host = host
        self._scope = anyio.CancelScope(shield=True)
        self._done = anyio.Event()
        self._has_begun = False
        self.entry: CleanupEntry | None = None

    def wait_info(self) -> WaitInfo:
        """Describe the task for reports about sessions that hang."""
        coordinator = self._host.coordinator
        return WaitInfo(coordinator=coordinator, label=self._what, module=self._owner)

    async def run(self) -> None:
        """Run the body of the task."""
        self._has_begun = True
        try:
            await self._work()
        finally:
            self._done.set()
            self._host.running.pop(self, None)

    async def _work(self) -> None:
        raise NotImplementedError

    async def _crashed(self, exc: BaseException, fatal: bool) -> None:
        """Report an exception from foreign code."""
        # The session's own cancellation doesn't arrive here, because its scope absorbs it.
        if is_real_cancellation(exc):
            logger.warning(
                "%s was cancelled with every other task, as at the end of the event loop",
                self._what,
            )
            return
        error = _failure_of(exc)
        # A KeyboardInterrupt ends the session, which raises it. If the task raised it, it would
        # stop asyncio's loop.
        fatal = fatal or not isinstance(error, Exception)
        await self._host.crashed(self._name, self._owner, error, fatal)

    def _forget_entry(self) -> None:
        """Remove the step that ends the task.

        The step refers back to the task, which is a reference cycle.
        """
        self._host.cleanups.discard(self.entry)
        self.entry = None

    def cancel(self) -> None:
        """Cancel the work."""
        self._scope.cancel()

    async def end(self) -> None:
        """Cancel the work and wait until it has ended."""
        self.cancel()
        if await self._begins():
            await self._done.wait()

    async def _begins(self) -> bool:
        """Give the task time for its first step, and return whether it has taken it.

        On asyncio a task that is cancelled before its first step never takes it, and never signals
        its end.
        """
        for _ in range(ROUNDS_TO_BEGIN):
            if not self._has_begun:
                await anyio.lowlevel.cancel_shielded_checkpoint()
        return self._has_begun


class BackgroundTask(SessionTask):
    """Work that a module started alongside the turns."""

    __slots__ = ("_args", "_fatal", "_fn")

    def __init__(
        self,
        fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        name: str,
        owner: str | None,
        fatal: bool,
        host: TaskHost,
    ) -> None:
        super().__init__(f"background task {name!r}", name, owner, host)
        self._fn = fn
        self._args = args
        self._fatal = fatal

    async def _work(self) -> None:
        try:
            with self._scope:
                await self._fn(*self._args)
        except BaseException as exc:  # noqa: BLE001 — foreign code: its crash ends this task only
            await self._crashed(exc, self._fatal)
        finally:
            self._forget_entry()


class HostTask(SessionTask):
    """A structured module in its own task.

    The outer scope is cancelled if the module has to exit while it is still being entered. The
    inner scope is shielded once the module has been entered, and is cancelled only if the module
    doesn't exit in time.

    Attributes:
        entered: Set when the module has been entered or has failed to.
        is_inside: True once the module has been entered.
        value: The value that the context manager returned on entry.
    """

    __slots__ = ("_error", "_inside", "_left", "_manager", "entered", "is_inside", "value")

    def __init__(
        self,
        manager: AbstractAsyncContextManager[object],
        name: str,
        owner: str | None,
        host: TaskHost,
    ) -> None:
        super().__init__(f"structured mount of {name!r}", name, owner, host)
        self._manager = manager
        self._inside = anyio.CancelScope()
        self._left = anyio.Event()
        self._error: BaseException | None = None
        self.entered: anyio.Event = anyio.Event()
        self.is_inside: bool = False
        self.value: object = None

    @ki_protected
    async def _work(self) -> None:
        hosted_by.set((*hosted_by.get(), self._host))
        try:
            with self._scope, self._inside:
                async with self._manager as self.value:
                    self._inside.shield = self.is_inside = True
                    self.entered.set()
                    await self._left.wait()
        except BaseException as exc:  # noqa: BLE001 — foreign code
            if is_real_cancellation(exc) or (self.is_inside and not self._left.is_set()):
                await self._crashed(exc, False)
            else:
                self._error = _failure_of(exc)
        finally:
            if self._error is None:
                self._forget_entry()
            self.entered.set()

    def cancel(self) -> None:
        """Cancel the work, and the module if it has been entered."""
        self._scope.cancel()
        self._inside.cancel()

    @property
    def owner(self) -> str | None:
        """The id of the module, or None for the application."""
        return self._owner

    async def leave(self) -> None:
        """Request the module's exit and wait for it.

        If the wait is cancelled, cancel the module.
        """
        self._left.set()
        if not self.entered.is_set():
            self._scope.cancel()
        if not await self._begins():
            return
        try:
            await self._done.wait()
        except BaseException:
            with cancel_scope(shield=True):
                await self.end()
            raise
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of entering or exiting the module, once."""
        error, self._error = self._error, None
        self._forget_entry()
        if error is not None:
            try:
                raise error
            finally:
                # Break the reference cycle with the traceback.
                del error


def _failure_of(exc: BaseException) -> BaseException:
    """Return the failure of foreign code, or the KeyboardInterrupt that hit it."""
    try:
        return contained_failure(exc)
    except BaseException as interrupt:  # noqa: BLE001 — raised where the task is waited for
        return interrupt
    finally:
        # Break the reference cycle with the traceback.
        del exc
