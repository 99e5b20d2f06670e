"""The coordinator: everything the host offers to a module."""

from __future__ import annotations

import logging
import math
import weakref
from collections import UserDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast, overload

from amplifier._internal.json import JSON
from amplifier.contracts import (
    ApprovalSystem,
    Cleanup,
    Coordinator,
    DisplaySystem,
    OnFailure,
    Step,
    StepWrapper,
    contain_errors,
)
from amplifier.contracts.cancellation import current_time
from amplifier.errors import DeadlineExceeded, SessionStateError
from amplifier.models import HookResult
from amplifier.plan import Deadlines, MountPlan
from amplifier.plan.spec import DEFAULT_DEADLINES

from ..hooks.hook_results import Approvals, TurnEffects, process_hook_result
from ..hooks.registry import TERMINAL_SECONDS, HookRegistry
from ..runtime.cancellation import CancellationToken
from ..runtime.child import ki_protected, run_in_child
from ..runtime.cleanup import CleanupEntry, CleanupFailure, CleanupStack
from ..runtime.deadlines import DeadlinePassed, TimeBudget, run_bounded
from ..runtime.loop import Loop
from ..runtime.owner import Owner
from ..runtime.task_host import TaskHost
from ..runtime.watchdog import Watchdog
from .ownership import COMPLETED, Contributions, Limiter, MountTable, NoopAwaitable, StepWrappers

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

T = TypeVar("T")
P = ParamSpec("P")


# The application's coordinator has no owner. A module's coordinator is the same class with the
# module as its owner, so everything registered through it carries the module's id. That is how a
# failing module can be undone and named in a report, and no module can remove the registrations of
# another.
#
# All coordinators of a session share one ``__dict__``. It holds their state, and attributes that
# published modules set on their coordinator for other modules to read.


class ModuleCoordinator(Coordinator):
    """Give the modules of one session access to each other and to the host.

    Registering through a module's coordinator raises `SessionStateError` once the module has been
    undone or the session is closed.

    Args:
        session: The session, or any object with ``session_id``, ``parent_id`` and ``config``. None
            for a coordinator on its own.
        approval_system: Answers hooks that ask the user.
        display_system: Shows messages of hooks.

    Attributes:
        loader: The module loader of the session.
        session_state: A dict for modules to share.
        turn_number: The number of the latest turn, counted from 1. 0 before the first one.
        deadlines: The deadlines of the plan.
    """

    # Only the kernel uses ``mounts`` (mounted modules and capabilities), ``cleanups`` (steps of the
    # closing), ``hosting`` (tasks of the session), ``watch`` (reports calls that don't react to
    # their cancellation), ``closing_time`` (shared by all steps of the closing) and ``effects``
    # (the effects of hooks on the running turn).

    __slots__ = ("_own_hooks", "_owner")

    _owner: Owner | None
    _own_hooks: HookRegistry | None

    def __init__(
        self,
        session: Any = None,
        approval_system: ApprovalSystem | None = None,
        display_system: DisplaySystem | None = None,
    ) -> None:
        self._owner = self._own_hooks = None
        self._session = session
        self._session_id: str = "" if session is None else session.session_id
        self._parent_id: str | None = None if session is None else session.parent_id
        self._config: dict[str, JSON] = {} if session is None else session.config
        self._approval_system = approval_system
        self._display_system = display_system
        self.loader: Any = None
        self.session_state: dict[str, Any] = {}
        self.turn_number: int = 0
        self.deadlines: Deadlines = DEFAULT_DEADLINES
        self._hooks = HookRegistry()
        self._owners: list[Owner] = []
        self.mounts: MountTable = MountTable(self._hooks)
        self._channels = Contributions()
        self._step_wrappers = StepWrappers()
        self._cancellation = CancellationToken()
        self.cleanups: CleanupStack = CleanupStack()
        self.hosting: TaskHost = TaskHost(self.cleanups, self)
        self.watch: Watchdog = Watchdog(self.hosting.unresponsive)
        self.closing_time: TimeBudget = TimeBudget()
        self.effects: TurnEffects = TurnEffects()
        self._is_closed = False
        self._hooks.belong_to(self._session_id, self._parent_id, self.watch, self.closing_time)

    # The default is on the class, because few sessions ever prompt the user.
    _approvals: Approvals | None = None

    def __repr__(self) -> str:
        points = self.mounts.points
        module = "" if self._owner is None else f", for module {self._owner.name!r}"
        return (
            f"<ModuleCoordinator of session {self._session_id!r}: {len(points['tools'])} tools, "
            f"{len(points['providers'])} providers, "
            f"{self._hooks.statistics().handlers} handlers{module}>"
        )

    # ── owners ──

    def view_for(self, module: str, on_failure: OnFailure = "continue") -> Self:
        """Return the coordinator for a module.

        Args:
            module: The id of the module.
            on_failure: The failure policy of handlers that the module registers without one.
        """
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__
        view._owner = Owner(module, on_failure)
        view._own_hooks = None
        self._owners.append(view._owner)
        return view

    @property
    def module_id(self) -> str | None:
        """The id of the module that this coordinator was made for. None for the application's."""
        return None if self._owner is None else self._owner.name

    def _check(self, operation: str) -> None:
        if self._owner is not None:
            self._owner.check(operation)

    async def undo(self, module: str) -> None:
        """Run the cleanups of a module and remove everything it registered.

        Afterwards the module can register only cleanups.
        """
        try:
            await self.clean_up(module)
        finally:
            self.unregister_owner(module)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the registrations of a module and refuse new ones. None means all modules."""
        for owner in self._owners:
            if module is None:
                owner.is_closed = True
            elif owner.name == module:
                owner.is_undone = True
        for registered in (self._hooks, self._step_wrappers, self._channels, self.mounts):
            registered.unregister_owner(module)
        if module is None:
            self._owners.clear()

    # ── read by modules ──

    @property
    def session(self) -> Any:
        """The session, from which a module forks child sessions.

        None if there is no session anymore.
        """
        session = self._session
        return session() if type(session) is weakref.ref else session

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self._session_id

    @property
    def parent_id(self) -> str | None:
        """The id of the parent session, or None."""
        return self._parent_id

    @property
    def config(self) -> dict[str, JSON]:
        """The mount plan. This is the dict that was passed to the session, not a copy."""
        return self._config

    @property
    def hooks(self) -> HookRegistry:
        """The hook registry.

        A handler registered through a module's registry belongs to that module.
        """
        if self._owner is None:
            return self._hooks
        if self._own_hooks is None:
            self._own_hooks = self._hooks.view_for(self._owner)
        return self._own_hooks

    @property
    def mount_points(self) -> MutableMapping[str, Any]:
        """The mounted modules by mount point, live."""
        points = self.mounts.points
        return points if self._owner is None else _OwnedPoints(points, self.hooks)

    @property
    def approval_system(self) -> ApprovalSystem | None:
        """The system that answers hooks that ask the user, or None."""
        return self._approval_system

    @approval_system.setter
    def approval_system(self, system: ApprovalSystem | None) -> None:
        self._note_replaced("approval_system", self._approval_system)
        self._approval_system = system

    @property
    def display_system(self) -> DisplaySystem | None:
        """The system that shows messages of hooks, or None."""
        return self._display_system

    @display_system.setter
    def display_system(self, system: DisplaySystem | None) -> None:
        self._note_replaced("display_system", self._display_system)
        self._display_system = system

    def _note_replaced(self, name: str, present: object) -> None:
        if self._owner is not None and present is not None:
            logger.warning("module %r replaces the session's %s", self._owner.name, name)

    @property
    def cancellation(self) -> CancellationToken:
        """The cancellation token of the session."""
        return self._cancellation

    @property
    def channels(self) -> dict[str, list[dict[str, Any]]]:
        """The name and the callback of each contributor, by channel."""
        return self._channels.as_dict()

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning, or None for no limit."""
        return self._limit("injection_budget_per_turn")

    @property
    def injection_size_limit(self) -> int | None:
        """Characters that one injection may have, or None for no limit."""
        return self._limit("injection_size_limit")

    def _limit(self, name: str) -> int | None:
        config: object = self._config
        if type(config) is not dict and not isinstance(config, Mapping):
            return None
        section = config.get("session")
        if type(section) is not dict and not isinstance(section, Mapping):
            return None
        return cast("int | None", section.get(name))

    def to_dict(self) -> dict[str, JSON]:
        """Describe the mounted modules by name, for logs."""
        points = self.mounts.points
        return {
            "tools": list(points["tools"]),
            "providers": list(points["providers"]),
            "has_orchestrator": points["orchestrator"] is not None,
            "has_context": points["context"] is not None,
            "capabilities": list(self.mounts.capabilities),
            "has_approval_provider": self.approval_system is not None,
            "has_display_service": self.display_system is not None,
        }

    # ── mount points, capabilities and contributions ──

    # Type checkers use the signatures of the contract, which has an overload for each mount point.
    if not TYPE_CHECKING:

        def mount(self, mount_point: str, module: object, name: str | None = None) -> NoopAwaitable:
            """Put a module at a mount point.

            The call itself does this, so awaiting the result is optional.
            """
            owner = self._owner
            if owner is not None:
                owner.check("a mount")
            self.mounts.mount(mount_point, module, name, None if owner is None else owner.name)
            return COMPLETED

        def get(self, mount_point: str, name: str | None = None) -> Any:
            """Return the module at a mount point, or None.

            For providers and tools, return the one with this name, or without a name the dict of
            all.
            """
            if mount_point == "hooks" and self._owner is not None:
                return self.hooks
            return self.mounts.get(mount_point, name)

        def get_mounted(self, mount_point: str) -> Any:
            """Return the same as ``get(mount_point)``."""
            return self.get(mount_point)

    def owner_of(self, mount_point: str, name: str | None = None) -> str | None:
        """Return the id of the module that filled a mount point, or None if no module did."""
        return self.mounts.owner_of(mount_point, name)

    def unmount(self, mount_point: str, name: str | None = None) -> NoopAwaitable:
        """Remove a module from a mount point. Its cleanups still run when the session closes.

        Raises:
            ValueError: The mount point is unknown or needs a name.
            ContractError: Another module, or the application, has mounted it.
        """
        self.mounts.unmount(mount_point, name, self.module_id)
        return COMPLETED

    def register_capability(self, name: str, value: object) -> None:
        """Offer a value, often a function, to other modules under ``name``."""
        self._check("a capability")
        self.mounts.register_capability(name, value, self.module_id)

    def get_capability(self, name: str) -> Any:
        """Return the value registered under ``name``, or None."""
        return self.mounts.capabilities.get(name)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], object]) -> None:
        """Call ``callback()`` whenever ``channel`` is collected."""
        self._check("a contributor")
        self._channels.register(channel, name, callback, self._owner)

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return the results of the contributors of ``channel`` in order, without None."""
        deadlines = self.deadlines
        return await self._channels.collect(
            channel, each=deadlines.contribution, total=deadlines.collection, watch=self.watch
        )

    # ── steps ──

    def register_step_wrapper(self, wrapper: StepWrapper) -> Callable[[], None]:
        """Call ``wrapper(step, run)`` around every model call and tool call.

        Returns:
            A function that removes the wrapper.
        """
        self._check("a step wrapper")
        return self._step_wrappers.register(wrapper, self._owner)

    async def run_step(
        self,
        step: Step,
        run: Callable[[], Awaitable[T]],
        *,
        admit: Callable[[], Awaitable[T | None]] | None = None,
        limiter: Limiter | None = None,
    ) -> T:
        """Make one model call or tool call inside the step wrappers.

        `amplifier.contracts.Coordinator.run_step` describes it.
        """
        return await self._step_wrappers.run(step, run, admit, limiter, self.deadlines.hook)

    # ── hook results ──

    async def process_hook_result(
        self, result: HookResult, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        """Carry out the approvals, injections and messages of a result.

        Returns:
            The part that is left for the orchestrator: ``deny``, ``modify`` with the payload,
            ``inject_context`` with ephemeral items only, or ``continue``.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``. Nothing was
                stored.
        """
        return await process_hook_result(self, result, event, hook_name)

    @property
    def approvals(self) -> Approvals:
        """The approvals of this session, including the answers that it remembers."""
        if self._approvals is None:
            self._approvals = Approvals(self._hooks.emit, self.watch)
        return self._approvals

    @property
    def _current_turn_injections(self) -> int:
        """Estimated tokens that hooks have injected in this turn.

        Published modules read this attribute.
        """
        return self.effects.injected_tokens

    def reset_turn(self) -> None:
        """Start counting the injections of a new turn."""
        self.effects = TurnEffects()

    @overload
    async def call_bounded(self, answer: Awaitable[T], operation: str) -> T: ...
    @overload
    async def call_bounded(self, answer: object, operation: str) -> object: ...
    async def call_bounded(self, answer: object, operation: str) -> object:
        """Await the result of an application's object or a context under the hook deadline.

        Args:
            answer: The result, which is returned as it is if it isn't awaitable.
            operation: The description of the call for the error message.

        Raises:
            DeadlineExceeded: The deadline passed.
        """
        if not isawaitable(answer):
            return answer
        try:
            return await run_bounded(answer, self.deadlines.hook, operation, self.watch)
        except DeadlinePassed as late:
            raise DeadlineExceeded(
                f"{operation}: {late}", operation=operation, seconds=late.seconds
            ) from None

    async def call_within(
        self,
        seconds: float | None,
        who: str,
        fn: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Await one call into third-party code under a deadline, and contain its failure.

        A call that doesn't react to its cancellation is reported as ``module:unresponsive``.

        Raises:
            DeadlineExceeded: The deadline passed. Its ``operation`` is ``who``.
        """

        async def call() -> T:
            # This puts the name into the text of a failure, and unwraps cancellations from groups.
            with contain_errors(who):
                return await fn(*args, **options)

        try:
            return await run_bounded(call(), seconds, who, self.watch)
        except DeadlinePassed as late:
            if late.has_answer:
                return cast("T", late.answer)
            raise DeadlineExceeded(
                f"{who} did not return within {late.seconds:g} s and was cancelled",
                operation=who,
                seconds=late.seconds,
            ) from None

    # ── cancellation, background work, cleanup ──

    def request_cancel(self, immediate: bool = False) -> None:
        """Ask the running turn to stop. This is safe to call from threads and signal handlers."""
        if immediate:
            self._cancellation.request_immediate()
        else:
            self._cancellation.request_graceful()

    def start_soon(
        self,
        fn: Callable[..., Awaitable[object]],
        *args: object,
        name: str | None = None,
        fatal: bool = False,
    ) -> None:
        """Run ``fn(*args)`` alongside the turns until it ends or the session closes.

        Args:
            fn: The work.
            args: Its arguments.
            name: The name of the task.
            fatal: End the session if the work crashes.

        Raises:
            SessionStateError: The session wasn't opened with ``async with`` and has no task group.
        """
        self._check("background work")
        if not callable(fn):
            raise TypeError(f"start_soon needs an async function and its arguments, got {fn!r}")
        name = name or getattr(fn, "__qualname__", None) or repr(fn)
        self.hosting.start_soon(fn, args, name=name, owner=self.module_id, fatal=fatal)

    async def host(
        self, context_manager: AbstractAsyncContextManager[object], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Keep an async context manager open in a separate task until the session closes.

        Returns:
            A function that exits the context manager earlier.

        Raises:
            SessionStateError: The session wasn't opened with ``async with`` and has no task group.
        """
        self._check("a hosted context manager")
        owner = self.module_id
        name = name or owner or "application"
        host = await self.hosting.host(context_manager, name=name, owner=owner)
        return host.leave

    async def run_shielded(
        self, fn: Callable[..., Awaitable[T]], *args: object, name: str | None = None
    ) -> T:
        """Run ``fn(*args)`` to completion before delivering a cancellation of the caller."""
        name = name or getattr(fn, "__qualname__", None) or repr(fn)
        return await run_in_child(fn, *args, name=name, shield=True)

    def register_cleanup(self, cleanup_fn: Cleanup | None) -> None:
        """Call ``cleanup_fn()``, sync or async, when the session closes.

        An object that isn't callable is ignored. An undone module may still register a cleanup, for
        a resource that it opened too late.
        """
        if self._owner is not None:
            self._owner.check("a cleanup", undone_may=True)
        if not callable(cleanup_fn):
            return
        if self._is_closed:
            name = getattr(cleanup_fn, "__qualname__", cleanup_fn)
            raise SessionStateError(
                f"register_cleanup({name}) comes too late: session {self._session_id!r} is closed "
                "and would never run it; close the resource yourself"
            )
        self.cleanups.push(cleanup_fn, self.module_id)

    @ki_protected
    async def cleanup(self) -> None:
        """Run all registered cleanups, or those of the module. The last one runs first.

        Raises:
            BaseException: The first KeyboardInterrupt or exit that a cleanup raised, once all have
                run.
        """
        await self.clean_up(self.module_id)

    async def clean_up(self, owner: str | CleanupEntry | None) -> None:
        """Run the cleanups of one module, one single step, or everything. Each runs once."""
        failures: list[CleanupFailure] = []
        budget = self.closing_time
        # An infinite budget means that the session isn't being closed.
        if budget.until == math.inf:
            budget = TimeBudget.starting_now(self.deadlines.teardown)
        name = "amplifier cleanup" if owner is None else f"amplifier cleanup of {owner}"
        unwinding = run_in_child(self.unwind, failures, budget, owner, name=name, shield=True)
        interrupt = await unwinding
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                # Break the reference cycle with the traceback.
                del interrupt

    async def unwind(
        self,
        failures: list[CleanupFailure],
        budget: TimeBudget,
        owner: str | CleanupEntry | None = None,
    ) -> BaseException | None:
        """Run cleanups. Call this inside a shielded scope."""
        return await self.cleanups.unwind(
            failures,
            seconds=self.deadlines.cleanup,
            budget=budget,
            watch=self.watch,
            owner=owner,
        )

    # ── the session's side ──

    def open(self, plan: MountPlan, loop: Loop, announce: Callable[[], None]) -> None:
        """Apply the settings of the plan and accept background work.

        Args:
            plan: The plan that the session opens with.
            loop: The event loop of the session.
            announce: Announces the requests of the cancellation token.
        """
        self.deadlines = plan.deadlines
        self._is_closed = False
        self._hooks.set_default_timeout(plan.deadlines.hook)
        self.mounts.strict = plan.strict
        self.hosting.is_shut = False
        spawn = None if self.hosting.group is None else self.hosting.spawn
        self.watch.start(spawn)
        notify = None if spawn is None else announce
        self._cancellation.attach(
            loop, spawn or loop.spawn_timer, notify, self.closing_time, self.watch
        )

    def begin_closing(self) -> TimeBudget:
        """Start the time budget of the closing, which all its steps share."""
        teardown = self.deadlines.teardown
        if teardown is not None:
            now = current_time()
            self.closing_time.until = now + teardown
            self.watch.tighten(now + min(TERMINAL_SECONDS, teardown / 2))
        return self.closing_time

    def refuse_work(self) -> None:
        """Refuse new tasks. All cleanups have run, so nothing would end a task started now."""
        self.hosting.is_shut = True
        self.watch.start(None)

    def end_closing(self) -> None:
        """Drop everything that modules registered, and the reference to the session."""
        self._is_closed = True
        self.closing_time.until = math.inf
        # Stop the watchdog first: on trio the task group waits for its timer.
        self.watch.stop()
        self._cancellation.detach()
        self.unregister_owner(None)
        if self._session is not None and type(self._session) is not weakref.ref:
            self._session = weakref.ref(self._session)


class _OwnedPoints(UserDict[str, Any]):
    """The live mount points as one module sees them, with its own hook registry at "hooks"."""

    def __init__(self, points: dict[str, Any], hooks: HookRegistry) -> None:
        self.data = points
        self._hooks = hooks

    def __getitem__(self, point: str) -> Any:
        return self._hooks if point == "hooks" else self.data[point]
