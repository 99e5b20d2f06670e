"""What a session owns and ends in one order: cleanups of modules, background tasks, and the host tasks of structured modules.

The cleanup stack: what came last goes first; each step bounded, failures named and collected, the rest always runs. It runs inside a shielded
section of the session's. Entries are cleanup callables of modules and the stopping of tasks alike, so their order is one order.

A structured module is an async context manager that may keep task groups and cancel scopes open; it therefore gets a task of its own, in which
it is entered and left. All such tasks live in the session's task group and are shielded from what happens around the session, the end of the
event loop included: they are ended in the order of the cleanup stack, users before services, never all at once.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from types import MethodType
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from amplifier.contracts._cancellation import cancel_scope, contained_failure, is_cancellation_type, text_of
from amplifier.errors import SessionStateError, SpuriousCancellation
from amplifier.events import MODULE_CRASHED, MODULE_UNRESPONSIVE

from .backend import RunningCall, exit_details, start_timer
from .deadlines import DeadlineGroup, DeadlinePassed, TimeBudget, Unresponsive, Watchdog, failure_text
from .uninterrupted import run_section

logger: logging.Logger = logging.getLogger("amplifier.session")

LEAST_SHARE = 0.1
"""The part of its own deadline that is kept for each cleanup while those before it take long."""

PATIENCE = 30.0
"""Seconds that a task waits at the end of the loop for its session to close, where no ``deadlines.teardown`` is set."""

MOST_LATE = 32
"""How many calls that went on after their cancellation a session keeps for its report."""

ROUNDS_TO_BEGIN = 2
"""Turns of the loop after which a new task has made its first step, on every backend, if it ever will."""


# ── the cleanup stack ────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class CleanupEntry:
    """One step of the closing."""

    run: Callable[[], Any]
    module: str | None
    what: str = "cleanup"
    is_running: bool = False
    has_begun: bool = False
    is_over: bool = False

    def __str__(self) -> str:
        return f"{self.what} of {self.module or 'the application'}"


@attrs.frozen
class CleanupFailure:
    """A step that failed or was cut off: which, whose, and why."""

    what: str
    module: str | None
    error: BaseException
    overran: bool

    def __str__(self) -> str:
        return f"{self.what} of {self.module or 'the application'}: {text_of(self.error) or type(self.error).__name__}"


class CleanupStack:
    """Registered steps of one session, run once and in reverse.

    A step is kept until it has run and its failure is noted. Wherever Ctrl-C cuts that off, another call runs the step, or names it if it
    had begun.
    """

    __slots__ = ("_entries", "ran")

    def __init__(self) -> None:
        self._entries: dict[Hashable, CleanupEntry] = {}
        self.ran: list[tuple[str, str | None, float, CleanupFailure | None]] = []
        """What the latest closing ended, for ``session.last_stop``: what, whose, in how many seconds, and its failure."""

    def __len__(self) -> int:
        return sum(1 for _ in self._waiting(None))

    @property
    def entries(self) -> list[CleanupEntry]:
        """The steps in the order in which they were registered."""
        return list(self._entries.values())

    def push(self, run: Callable[[], Any], owner: str | None, what: str = "cleanup") -> CleanupEntry | None:
        """Add a step, unless the same module pushed the same callable already (returned *and* registered)."""
        entry = CleanupEntry(run, owner, what)
        key = _key(entry)
        if key in self._entries:
            return None
        self._entries[key] = entry
        return entry

    def discard(self, entry: CleanupEntry | None) -> bool:
        """Forget a step that has become unnecessary; False if it is not there any more."""
        if entry is None or self._entries.get(_key(entry)) is not entry:
            return False
        if next(reversed(self._entries.values())) is entry:  # leaves no gap, over which each reading backwards would go
            self._entries.popitem()
        else:
            del self._entries[_key(entry)]
        return True

    def move_up(self, entry: CleanupEntry) -> None:
        """Have a step run before all that are there."""
        key = _key(entry)
        if self._entries.get(key) is entry:
            self._entries = {**{each: self._entries[each] for each in self._entries if each != key}, key: entry}

    async def unwind(
        self,
        failures: list[CleanupFailure],
        *,
        each: float | None,
        budget: TimeBudget,
        watch: Watchdog | None = None,
        owner: str | CleanupEntry | None = None,
    ) -> None:
        """Run and drop all steps, or those of one module, or this one, and add what failed to ``failures``, Ctrl-C included.

        Raised at a line of this file, Ctrl-C leaves; the steps that have not run are still there, and to be run by another call.
        """
        known = set(self._waiting(owner))
        if not known:
            return
        reserve = budget.reserve(LEAST_SHARE * (1.0 if each is None else each), len(known))
        calls = DeadlineGroup(watch)
        entry: CleanupEntry | None = None
        try:
            while (entry := next(self._waiting(owner), None)) is not None:
                entry.is_running = True
                error: BaseException | None = DeadlinePassed(0.0)
                began = time.monotonic()
                if entry.has_begun:
                    error = KeyboardInterrupt()  # which has cut it off
                elif entry in known or not budget.is_used_up:  # or steps that add steps would never end
                    known.discard(entry)
                    error = await _run_step(calls, entry, budget.share(each, len(known) + 1, reserve))
                failed = [] if error is None else [_failure(entry, error)]
                failures += failed  # no call, so nothing comes between these two
                entry.is_over = True
                self.discard(entry)
                if owner is None:
                    self.ran.append((entry.what, entry.module, time.monotonic() - began, failed[0] if failed else None))
        finally:
            if entry is not None:
                entry.is_running = False
            scope, calls.scope = calls.scope, None
            if scope is not None:  # first, and by no call of the kernel: see DeadlineGroup
                scope.__exit__(None, None, None)
            calls.close()

    def _waiting(self, owner: str | CleanupEntry | None) -> Iterator[CleanupEntry]:
        """The steps that no call is at, of one module or this one, the next one first."""
        return (
            entry
            for entry in reversed(self._entries.values())
            if not entry.is_running and not entry.is_over and (owner is None or owner is entry or owner == entry.module)
        )


def _failure(entry: CleanupEntry, error: BaseException) -> CleanupFailure:
    cut_off = isinstance(error, DeadlinePassed)
    logger.error("%s failed: %s", entry, text_of(error) or type(error).__name__, exc_info=None if cut_off else error)
    return CleanupFailure(entry.what, entry.module, error, cut_off)


async def _run_step(calls: DeadlineGroup, entry: CleanupEntry, seconds: float | None) -> BaseException | None:
    """Run one step; whatever it raises is returned: nothing may keep the rest from running."""
    try:
        entry.has_begun = True
        answer = entry.run()
        if isawaitable(answer):
            await calls.run(_protected(answer), seconds, entry)
    except BaseException as exc:  # noqa: BLE001 — foreign code, and see above
        return _judged(exc)
    return None


async def _protected(cleanup: Awaitable[Any]) -> None:
    """Await a cleanup: on trio Ctrl-C is not raised in it, unlike in other foreign code."""
    await cleanup


def _judged(exc: BaseException) -> BaseException:
    """The failure of a cleanup, or the Ctrl-C that happened to hit it; in a shielded section no cancellation is real."""
    if is_cancellation_type(exc):
        failure = SpuriousCancellation(f"raised {type(exc).__name__} although nothing was cancelled")
        failure.__cause__ = exc
        return failure
    try:
        return contained_failure(exc)
    except BaseException as passing:  # noqa: BLE001 — raised when all cleanups have run
        return passing


def _key(entry: CleanupEntry) -> Hashable:
    """Equal for two steps of one module with the same callable; a bound method is a new object each time it is looked up."""
    run, owner = entry.run, entry.module
    if owner is None:
        return entry
    if type(run) is MethodType:
        return owner, id(run.__self__), run.__func__
    return owner, id(run)


# ── tasks of the session ───────────────────────────────────────────────────────────────────────────


class TaskHost:
    """The session's task group, what runs in it, and reports of what goes wrong there.

    It refers to the coordinator weakly: a part of it that kept it alive would leave both to the garbage collector.

    Attributes:
        group: The session's task group; None outside ``async with session:``.
        is_shut: Everything has been cleaned up: no one would stop what were started now.
        fatal: Crashes of background tasks that asked to end the session.
        late: Calls that went on after their cancellation: when that was seen, whose, which, and how long by then.
    """

    __slots__ = ("_coordinator", "cleanups", "fatal", "group", "is_shut", "late", "running")

    def __init__(self, cleanups: CleanupStack, coordinator: Any) -> None:
        self.cleanups: CleanupStack = cleanups
        self._coordinator = weakref.ref(coordinator)
        self.group: anyio.abc.TaskGroup | None = None
        self.is_shut: bool = False
        self.running: dict[SessionTask, None] = {}  # a set, at a quarter of the memory while it is empty
        self.fatal: list[BaseException] = []
        self.late: list[tuple[float, str | None, str, float]] = []

    @property
    def coordinator(self) -> Any:
        """Whose tasks these are; None once it is gone."""
        return self._coordinator()

    @property
    def takes_work(self) -> bool:
        """Whether something can be started beside the turns now."""
        return self.group is not None and not self.is_shut

    def patience(self) -> float:
        """How long a task waits for its session to close when the event loop ends."""
        coordinator = self.coordinator
        teardown = None if coordinator is None else coordinator.deadlines.teardown
        return PATIENCE if teardown is None else float(teardown)

    async def leave_group(self, exc: BaseException | None, session_id: str) -> bool:
        """Leave the task group, in which nothing runs any more; True when ``exc`` was only our own way of stopping.

        An exception is handed to the group only when the group's own scope was cancelled, by a crashed background task that
        asked to end the session; otherwise the group would wrap it, and errors keep their type (L9).
        """
        group = self.group
        if group is None:
            return False
        others: list[BaseException] = []
        was_ended = group.cancel_scope.cancel_called
        for task in list(self.running):  # whose step of the closing was interrupted
            task.cancel()
        given = exc if was_ended else None
        leaving = group.__aexit__(*exit_details(given))
        self.group = None  # now: interrupted before, it is left again
        try:
            await leaving
        except BaseExceptionGroup as wrapped:  # on trio, Ctrl-C that arrived while the group was left
            others = list(wrapped.exceptions)
        finally:
            del given, exc  # an exception that names its own frame is a reference cycle
        crashes, self.fatal = self.fatal, []
        if not crashes and not others:
            return was_ended
        raised = [*crashes, *others]
        if len(raised) == 1 or all(isinstance(each, KeyboardInterrupt) for each in raised):
            raise raised[0]
        raise BaseExceptionGroup(f"session {session_id!r} was ended by crashed background work", raised)

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
        work.entry = self.cleanups.push(work.end, owner, what=f"background task {name!r}")
        self.running[work] = None
        group.start_soon(work.run, name=f"{owner or 'application'}: {name}")

    async def host(
        self, manager: AbstractAsyncContextManager[Any], *, name: str, owner: str | None, is_mount: bool = False
    ) -> HostTask:
        """Enter ``manager`` in a task of its own; if that fails or is cancelled, the manager is gone before this returns.

        That of a structured mount is on the cleanup stack then: whoever opens the session undoes the module or closes.

        Raises:
            SessionStateError: The session was opened by hand and has no task group.
            BaseException: What entering the manager raised.
        """
        group = self._require_group(f"the structured mount of {name!r}")
        host = HostTask(manager, name, owner, self)
        # Before it begins: whatever interrupts the entering, leaving it is on the stack.
        host.entry = self.cleanups.push(host.leave, owner, what="structured mount")
        self.running[host] = None
        group.start_soon(host.run, name=f"host of {name}")
        try:
            await self._enter(host)
        except BaseException:
            if host.entry is not None and not is_mount:
                await self.coordinator.clean_up(host.entry)
            raise
        return host

    async def _enter(self, host: HostTask) -> None:
        """Wait until a manager has entered; leaving it comes before the cleanups that it registered while it entered."""
        try:
            await host.entered.wait()
        except BaseException:  # it ends or leaves by itself now; the cleanup waits until it is gone
            host.withdraw()
            raise
        if host.error is not None:
            self.cleanups.discard(host.entry)
            error, host.error, host.entry = host.error, None, None
            raise error
        if host.entry is not None:
            self.cleanups.move_up(host.entry)

    def _require_group(self, what: str) -> anyio.abc.TaskGroup:
        if self.is_shut:
            raise SessionStateError(f"{what} comes too late: the session is closed")
        if self.group is None:
            raise SessionStateError(
                f"{what} needs the session's task group, which exists only inside `async with session:`; "
                "this session was opened with initialize(): open it with `async with` instead"
            )
        return self.group

    def end_session(self, error: BaseException) -> None:
        """End the session, which raises the error when it is left."""
        self.fatal.append(error)
        if self.group is not None:
            self.group.cancel_scope.cancel()

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
            self.end_session(error)
        if (coordinator := self.coordinator) is not None:
            details = {
                "module_id": owner,
                "task": name,
                "error": failure_text(error),
                "error_type": type(error).__name__,
                "fatal": fatal,
            }
            with anyio.CancelScope(shield=True):
                await coordinator.hooks.emit(MODULE_CRASHED, details)

    def unresponsive(self, report: Unresponsive) -> None:
        """Log a call that goes on after its deadline and emit ``module:unresponsive``."""
        module, operation = describe_label(report.label)
        late = time.monotonic(), module, f"{operation}, which waits at {report.where}", report.overdue
        self.late = [*self.late[1 - MOST_LATE :], late]
        logger.error(
            "%s does not answer to its cancellation: it had %g s and is %.0f s over; task %r waits at %s",
            operation,
            report.seconds,
            report.overdue,
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
        name = "amplifier module:unresponsive"
        self.spawn(partial(run_section, coordinator.hooks.emit, MODULE_UNRESPONSIVE, details, name=name, shield=True))


def describe_label(label: Any) -> tuple[str | None, str]:
    """Module and words for what a deadline was about: an object of the kernel that knows its module, or words."""
    return getattr(label, "module", None), str(label)


hosted_by: ContextVar[tuple[TaskHost, ...]] = ContextVar("amplifier_hosted_by", default=())
"""The sessions in whose structured modules the current task runs."""


class SessionTask:
    """A task of the session's group that only the session ends.

    On asyncio its work is a section of its own: a native cancel, as the end of the loop sends to every task in its list, waits until
    the work has been ended in its turn. A task that was cancelled before its first step never begins; waiting for it would not end.
    """

    __slots__ = ("_done", "_has_begun", "_host", "_is_abandoned", "_name", "_owner", "_scope", "_what", "entry")

    def __init__(self, what: str, name: str, owner: str | None, host: TaskHost) -> None:
        self._what = what
        self._name = name
        self._owner = owner
        self._host = host
        self._scope = anyio.CancelScope(shield=True)
        self._done = anyio.Event()
        self._has_begun = False
        self._is_abandoned = False
        self.entry: CleanupEntry | None = None
        """The step of the closing that ends it."""

    def running_call(self) -> RunningCall:
        """Whose work this is."""
        return RunningCall(coordinator=self._host.coordinator, label=self._what, module=self._owner)

    async def run(self) -> None:
        """The body of the task."""
        try:
            self._has_begun = True
            if not self._is_abandoned:
                await run_section(self._work, name=self._what, shield=True, on_held=self._end_in_time)
        except KeyboardInterrupt as exc:  # in this task it would end the whole loop
            self._host.end_session(exc)
        except BaseException as exc:
            # Held back until the work was over. The task ends here anyway, and its group would take it for a failure.
            if not is_cancellation_type(exc):
                raise
        finally:
            self._done.set()
            self._host.running.pop(self, None)

    async def _work(self) -> None:
        raise NotImplementedError

    def _end_in_time(self) -> None:
        """The loop is ending: the session ends this work when it closes; if no one closes it, it ends by itself."""
        start_timer(self._host.patience(), self.cancel, None)

    def cancel(self) -> None:
        """Cancel the work."""
        self._scope.cancel()

    async def end(self) -> None:
        """Cancel the work and wait until it is gone."""
        self.cancel()
        if await self._begins():
            await self._done.wait()

    async def _begins(self) -> bool:
        """Whether the task has made its first step; if not, it does nothing any more."""
        for _ in range(ROUNDS_TO_BEGIN):
            if not self._has_begun:
                await anyio.lowlevel.cancel_shielded_checkpoint()
        self._is_abandoned = not self._has_begun
        return self._has_begun


class BackgroundTask(SessionTask):
    """Work that a module started beside the turns."""

    __slots__ = ("_args", "_fatal", "_fn")

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
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
        except BaseException as exc:  # noqa: BLE001 — foreign code: a crash ends this task, not its neighbours
            await self._host.crashed(self._name, self._owner, exc, self._fatal)
        finally:
            self._host.cleanups.discard(self.entry)  # it has ended by itself
            self.entry: CleanupEntry | None = None


class HostTask(SessionTask):
    """One structured module in its own task.

    The scope of the task is cancelled when the opening is: that ends a module which is entering. One that has entered is in a
    second scope, which is shielded from then on, and cancelled only if it does not leave in time.
    """

    __slots__ = ("_inside", "_left", "_manager", "entered", "error", "value")

    def __init__(self, manager: AbstractAsyncContextManager[Any], name: str, owner: str | None, host: TaskHost) -> None:
        super().__init__(f"structured mount of {name!r}", name, owner, host)
        self._manager = manager
        self._inside = anyio.CancelScope()
        self._left = anyio.Event()
        self.entered: anyio.Event = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None

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
            if isinstance(exc, BaseExceptionGroup) and exc.split(KeyboardInterrupt)[1] is None:
                error = KeyboardInterrupt()  # a task group of the module has wrapped it
            elif is_cancellation_type(exc):  # shielded: the module made it up
                error = SpuriousCancellation(
                    f"{self._name!r} raised {type(exc).__name__} although nothing was cancelled"
                )
            if self.entered.is_set() and not self._left.is_set():
                await self._host.crashed(self._name, self._owner, error, False)
            else:
                self.error = error
        finally:
            self.entered.set()

    def cancel(self) -> None:
        """Cancel the work, and the module that is open."""
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
        if self.error is not None:
            error, self.error = self.error, None
            raise error
