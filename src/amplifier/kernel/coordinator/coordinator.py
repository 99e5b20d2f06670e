"""The coordinator: mount points, capabilities, channels, hooks, cancellation and cleanup as one object.

It implements `contracts.Coordinator`. The application's coordinator is the one without an owner. A module's is the same class with
the module as its owner: everything registered through it carries the module's id, so a module that fails or is unmounted can be
undone and blamed, and none can take away what another registered.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections import UserDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from amplifier.contracts import Coordinator, OnFailure, Step, StepWrapper
from amplifier.contracts._cancellation import current_time
from amplifier.errors import DeadlineExceeded, SessionStateError
from amplifier.models import HookResult
from amplifier.plan import Deadlines, MountPlan
from amplifier.plan._spec import DEFAULT_DEADLINES

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
from .ownership import COMPLETED, Contributions, MountTable, NoopAwaitable, StepWrappers

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

T = TypeVar("T")


class ModuleCoordinator(Coordinator):
    """What holds the modules of one session together.

    All coordinators of a session share one ``__dict__``: its state, and the attributes that published modules set. Whatever registers
    something through a module's raises `SessionStateError` once the module was undone or the session is closed.

    Args:
        session: Anything with ``session_id``, ``parent_id`` and ``config``; None for a coordinator of its own.
        approval_system: Answers hooks that ask the user.
        display_system: Shows messages of hooks.
    """

    __slots__ = ("_own_hooks", "_owner")

    _owner: Owner | None
    _own_hooks: HookRegistry | None

    def __init__(self, session: Any = None, approval_system: Any = None, display_system: Any = None) -> None:
        self._owner = self._own_hooks = None
        self._session = session
        self._session_id: str = "" if session is None else session.session_id
        self._parent_id: str | None = None if session is None else session.parent_id
        self._config: Any = {} if session is None else session.config
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

    # On the class, because few sessions ever have another.
    _approvals: Approvals | None = None

    def __repr__(self) -> str:
        points = self.mounts.points
        module = "" if self._owner is None else f", for module {self._owner.name!r}"
        return (
            f"<ModuleCoordinator of session {self._session_id!r}: {len(points['tools'])} tools, "
            f"{len(points['providers'])} providers, {self._hooks.statistics().handlers} handlers{module}>"
        )

    # ── owners ──

    def view_for(self, module: str, on_failure: OnFailure = "continue") -> Self:
        """The coordinator that a module gets; its handlers fail as ``on_failure`` says if they do not say themselves."""
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__
        view._owner = Owner(module, on_failure)
        view._own_hooks = None
        self._owners.append(view._owner)
        return view

    @property
    def module_id(self) -> str | None:
        """The module that this coordinator was made for; None for the application's."""
        return None if self._owner is None else self._owner.name

    def _check(self, what: str) -> None:
        if self._owner is not None:
            self._owner.check(what)

    async def undo(self, module: str) -> None:
        """Take back everything a module registered: its cleanups run, its mounts, handlers and offers go.

        What it registers from then on is refused, cleanups excepted.
        """
        try:
            await self.clean_up(module)
        finally:
            self.unregister_owner(module)

    def unregister_owner(self, module: str | None) -> None:
        """Take back what a module registered, which may register nothing any more; with None, for the closing, what any module did."""
        for owner in self._owners:
            if module is None:
                owner.is_closed = True
            elif owner.name == module:
                owner.is_undone = True
        for registered in (self._hooks, self._step_wrappers, self._channels, self.mounts):
            registered.unregister_owner(module)
        if module is None:
            self._owners.clear()

    # ── what a module may read ──

    @property
    def session(self) -> Any:
        """The session, for spawning children; None once it is closed and no longer referenced."""
        session = self._session
        return session() if type(session) is weakref.ref else session

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._session_id

    @property
    def parent_id(self) -> str | None:
        """The parent session's id, in a child."""
        return self._parent_id

    @property
    def config(self) -> Any:
        """The mount plan, the same object that the session was given."""
        return self._config

    @property
    def hooks(self) -> HookRegistry:
        """The hook registry; a module's registers on behalf of the module."""
        if self._owner is None:
            return self._hooks
        if self._own_hooks is None:
            self._own_hooks = self._hooks.view_for(self._owner)
        return self._own_hooks

    @property
    def mount_points(self) -> MutableMapping[str, Any]:
        """What is mounted where, live."""
        points = self.mounts.points
        return points if self._owner is None else _OwnedPoints(points, self.hooks)

    @property
    def approval_system(self) -> Any:
        """What answers hooks that ask the user."""
        return self._approval_system

    @approval_system.setter
    def approval_system(self, system: Any) -> None:
        self._note_replaced("approval_system", self._approval_system)
        self._approval_system = system

    @property
    def display_system(self) -> Any:
        """What shows messages of hooks."""
        return self._display_system

    @display_system.setter
    def display_system(self, system: Any) -> None:
        self._note_replaced("display_system", self._display_system)
        self._display_system = system

    def _note_replaced(self, name: str, present: Any) -> None:
        if self._owner is not None and present is not None:
            logger.warning("module %r replaces the session's %s", self._owner.name, name)

    @property
    def cancellation(self) -> CancellationToken:
        """The session's cancellation token."""
        return self._cancellation

    @property
    def channels(self) -> dict[str, list[dict[str, Any]]]:
        """Contributors by channel."""
        return self._channels.as_dict()

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens hooks may inject per turn before a warning is logged; None is unlimited."""
        return self._limit("injection_budget_per_turn")

    @property
    def injection_size_limit(self) -> int | None:
        """Characters one injection may have; None is unlimited."""
        return self._limit("injection_size_limit")

    def _limit(self, name: str) -> int | None:
        config = self._config
        if type(config) is not dict and not isinstance(config, Mapping):
            return None
        section = config.get("session")
        return section.get(name) if type(section) is dict or isinstance(section, Mapping) else None

    def to_dict(self) -> dict[str, Any]:
        """What is mounted, by name, for logs."""
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

    if not TYPE_CHECKING:  # a type checker sees the contract's, which has a signature for each mount point

        def mount(self, mount_point: str, module: Any, name: str | None = None) -> NoopAwaitable:
            """Put a module at a mount point. It is there when the call returns; awaiting the result is optional."""
            owner = self._owner
            if owner is not None:
                owner.check("a mount")
            self.mounts.mount(mount_point, module, name, None if owner is None else owner.name)
            return COMPLETED

        def get(self, mount_point: str, name: str | None = None) -> Any:
            """The module at a single mount point, the dict or one module of a named one; None if there is none."""
            if mount_point == "hooks" and self._owner is not None:
                return self.hooks
            return self.mounts.get(mount_point, name)

        def get_mounted(self, mount_point: str) -> Any:
            """The same as ``get(mount_point)``."""
            return self.get(mount_point)

    def owner_of(self, mount_point: str, name: str | None = None) -> str | None:
        """The module that mounted what is there; None for the application, or if there is nothing."""
        return self.mounts.owner_of(mount_point, name)

    def unmount(self, mount_point: str, name: str | None = None) -> NoopAwaitable:
        """Take something away, a module only what it mounted itself; its cleanups do not run before the session closes.

        Raises:
            ValueError: Unknown mount point, or no name where one is needed.
            ContractError: Another module, or the application, has mounted it.
        """
        self.mounts.unmount(mount_point, name, self.module_id)
        return COMPLETED

    def register_capability(self, name: str, value: Any) -> None:
        """Offer a value, often a function, to whoever asks for ``name``."""
        self._check("a capability")
        self.mounts.register_capability(name, value, self.module_id)

    def get_capability(self, name: str) -> Any:
        """The value registered under ``name``, or None."""
        return self.mounts.capabilities.get(name)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Have ``callback()`` called whenever ``channel`` is collected."""
        self._check("a contributor")
        self._channels.register(channel, name, callback, self._owner)

    async def collect_contributions(self, channel: str) -> list[Any]:
        """What the contributors of ``channel`` return, in order, without None."""
        return await self._channels.collect(
            channel, each=self.deadlines.contribution, total=self.deadlines.collection, watch=self.watch
        )

    # ── steps ──

    def register_step_wrapper(self, wrapper: StepWrapper) -> Callable[[], None]:
        """Have ``wrapper(step, run)`` called around every model call and tool call; returns a function that removes it."""
        self._check("a step wrapper")
        return self._step_wrappers.register(wrapper, self._owner)

    async def run_step(
        self,
        step: Step,
        run: Callable[[], Awaitable[Any]],
        *,
        admit: Callable[[], Awaitable[Any]] | None = None,
        limiter: Any = None,
    ) -> Any:
        """Make one model call or tool call inside the step wrappers; see `amplifier.contracts.Coordinator.run_step`."""
        return await self._step_wrappers.run(step, run, admit, limiter, self.deadlines.hook)

    # ── hook results ──

    async def process_hook_result(self, result: HookResult, event: str, hook_name: str = "unknown") -> HookResult:
        """Carry out what hooks asked for: approvals, injections, messages.

        Returns:
            What is left for the orchestrator: ``deny``, ``modify`` with the payload, ``inject_context`` with ephemeral
            items only, or ``continue``.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``; nothing was stored.
        """
        return await process_hook_result(self, result, event, hook_name)

    @property
    def approvals(self) -> Approvals:
        """The questions of this session, and the answers to remember."""
        if self._approvals is None:
            self._approvals = Approvals(self._hooks.emit, self.watch)
        return self._approvals

    @property
    def _current_turn_injections(self) -> int:
        """Estimated tokens that hooks have injected in this turn. The seeds read this name."""
        return self.effects.injected_tokens

    def reset_turn(self) -> None:
        """Start counting injections of a new turn."""
        self.effects = TurnEffects()

    async def call_bounded(self, answer: Any, what: str) -> Any:
        """Await what an application's object or a context returned, within the deadline of a handler.

        Raises:
            DeadlineExceeded: It was late.
        """
        if not isawaitable(answer):
            return answer
        try:
            return await run_bounded(answer, self.deadlines.hook, what, self.watch)
        except DeadlinePassed as late:
            raise DeadlineExceeded(f"{what}: {late}", operation=what, seconds=late.seconds) from None

    # ── cancellation, background work, cleanup ──

    def request_cancel(self, immediate: bool = False) -> None:
        """Ask the running turn to stop; safe from threads and signal handlers."""
        if immediate:
            self._cancellation.request_immediate()
        else:
            self._cancellation.request_graceful()

    def start_soon(
        self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None, fatal: bool = False
    ) -> None:
        """Run ``fn(*args)`` beside the turns until it ends or the session closes; with ``fatal`` a crash ends the session.

        Raises:
            SessionStateError: Outside ``async with session:`` there is no task group to run it in.
        """
        self._check("background work")
        if not callable(fn):
            raise TypeError(f"start_soon needs an async function and its arguments, got {fn!r}")
        name = name or getattr(fn, "__qualname__", None) or repr(fn)
        self.hosting.start_soon(fn, args, name=name, owner=self.module_id, fatal=fatal)

    async def host(
        self, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Enter an async context manager in a task of its own and keep it open until the session closes.

        Returns:
            A function that leaves it earlier.

        Raises:
            SessionStateError: Outside ``async with session:`` there is no task group to run it in.
        """
        self._check("a hosted context manager")
        owner = self.module_id
        host = await self.hosting.host(context_manager, name=name or owner or "application", owner=owner)
        return host.leave

    async def run_shielded(self, fn: Callable[..., Awaitable[T]], *args: Any, name: str | None = None) -> T:
        """Run ``fn(*args)`` to its end before a cancellation of the caller is delivered."""
        name = name or getattr(fn, "__qualname__", None) or repr(fn)
        return await run_in_child(fn, *args, name=name, shield=True)

    def register_cleanup(self, cleanup_fn: Any) -> None:
        """Have ``cleanup_fn()``, sync or async, called when the session closes; what is not callable is ignored.

        A module that was undone may still register one, for what it opened too late to be closed with the rest.
        """
        if self._owner is not None:
            self._owner.check("a cleanup", undone_may=True)
        if not callable(cleanup_fn):
            return
        if self._is_closed:
            raise SessionStateError(
                f"register_cleanup({getattr(cleanup_fn, '__qualname__', cleanup_fn)}) comes too late: session "
                f"{self._session_id!r} is closed and would never run it; close the resource yourself"
            )
        self.cleanups.push(cleanup_fn, self.module_id)

    @ki_protected
    async def cleanup(self) -> None:
        """Run all registered cleanups, a module only its own, the last one first; each runs once.

        Raises:
            BaseException: The first Ctrl-C or exit among them, after all have run.
        """
        await self.clean_up(self.module_id)

    async def clean_up(self, owner: str | CleanupEntry | None) -> None:
        """Run all cleanups, or one module's, or one step before its turn; on the session's clock while that closes."""
        failures: list[CleanupFailure] = []
        budget = (
            TimeBudget.starting_now(self.deadlines.teardown)
            if self.closing_time.until == math.inf
            else self.closing_time
        )
        name = "amplifier cleanup" if owner is None else f"amplifier cleanup of {owner}"
        await run_in_child(self.unwind, failures, budget, owner, name=name, shield=True)
        for failure in failures:
            if not isinstance(failure.error, Exception):
                raise failure.error

    async def unwind(
        self, failures: list[CleanupFailure], budget: TimeBudget, owner: str | CleanupEntry | None = None
    ) -> None:
        """Run cleanups inside a shielded scope; see `CleanupStack.unwind`."""
        await self.cleanups.unwind(
            failures, seconds=self.deadlines.cleanup, budget=budget, watch=self.watch, owner=owner
        )

    # ── the session's side ──

    def open(self, plan: MountPlan, loop: Loop, announce: Callable[[], None]) -> None:
        """The session opens: take the plan's settings and let work be started."""
        self.deadlines = plan.deadlines
        self._is_closed = False
        self._hooks.set_default_timeout(plan.deadlines.hook)
        self.mounts.strict = plan.strict
        self.hosting.is_shut = False
        spawn = None if self.hosting.group is None else self.hosting.spawn
        self.watch.start(spawn)
        self._cancellation.attach(
            loop, spawn or loop.spawn_timer, None if spawn is None else announce, self.closing_time, self.watch
        )

    def begin_closing(self) -> TimeBudget:
        """The session closes: from now on everything shares one deadline."""
        teardown = self.deadlines.teardown
        if teardown is not None:
            now = current_time()
            self.closing_time.until = now + teardown
            self.watch.tighten(now + min(TERMINAL_SECONDS, teardown / 2))
        return self.closing_time

    def refuse_work(self) -> None:
        """Everything was cleaned up: refuse what would be started now, for no one would stop it."""
        self.hosting.is_shut = True
        self.watch.start(None)

    def end_closing(self) -> None:
        """The session is closed: drop whatever modules registered. A closed session goes with the last reference to it."""
        self._is_closed = True
        self.closing_time.until = math.inf
        self.watch.stop()  # first: on trio the group waits for its timer
        self._cancellation.detach()
        self.unregister_owner(None)
        if self._session is not None and type(self._session) is not weakref.ref:
            self._session = weakref.ref(self._session)


class _OwnedPoints(UserDict[str, Any]):
    """The mount points as a module sees them: the live dict, but the hooks are the module's own."""

    def __init__(self, points: dict[str, Any], hooks: HookRegistry) -> None:
        self.data = points
        self._hooks = hooks

    def __getitem__(self, point: str) -> Any:
        return self._hooks if point == "hooks" else self.data[point]
