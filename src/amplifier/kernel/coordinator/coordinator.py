"""The coordinator: mount points, capabilities, channels, hooks, cancellation and cleanup as one object.

It implements `contracts.Coordinator`. The session owns one; modules see it through a `ModuleView`.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from amplifier.contracts import OnFailure, Step, StepWrapper
from amplifier.contracts._scopes import loop_clock
from amplifier.errors import DeadlineExceeded, SessionStateError
from amplifier.models import HookResult
from amplifier.plan import Deadlines, MountPlan
from amplifier.plan._spec import DEFAULT_DEADLINES

from ..hooks.approvals import Approvals
from ..hooks.injections import InjectionMeter, sanitised_injections, store
from ..hooks.merge import gates_of, processed_result
from ..hooks.registry import TERMINAL_SECONDS, HookRegistry
from ..runtime.backend import Loop
from ..runtime.cancellation import CancellationToken
from ..runtime.cleanup_stack import CleanupFailure, CleanupStack
from ..runtime.deadlines import DeadlinePassed, TimeBudget, call_foreign, run_bounded
from ..runtime.sections import run_section
from ..runtime.task_host import TaskHost
from ..runtime.watchdog import Watchdog
from .capabilities import Capabilities
from .contributions import Contributions
from .module_view import ModuleView
from .mount_access import MountPointAccess
from .mounts import Mounts
from .ownership import Ledger
from .reports import Reports
from .steps import StepWrappers

if TYPE_CHECKING:
    from amplifier._islands import Island

logger: logging.Logger = logging.getLogger("amplifier.coordinator")


class ModuleCoordinator(MountPointAccess):
    """What holds the modules of one session together.

    Args:
        session: Anything with ``session_id``, ``parent_id`` and ``config``; None for a coordinator of its own.
        approval_system: Answers hooks that ask the user.
        display_system: Shows messages of hooks.
    """

    def __init__(self, session: Any = None, approval_system: Any = None, display_system: Any = None) -> None:
        self._session = session
        self._session_id: str = "" if session is None else session.session_id
        self._parent_id: str | None = None if session is None else session.parent_id
        self._config: Any = {} if session is None else session.config
        self.approval_system = approval_system
        self.display_system = display_system
        self.loader: Any = None
        self.session_state: dict[str, Any] = {}
        self.turn_number: int = 0
        self.deadlines: Deadlines = DEFAULT_DEADLINES
        self._hooks = HookRegistry()
        self.ledger: Ledger = Ledger()
        self.mounts: Mounts = Mounts(self._hooks, self.ledger)
        self._capabilities = Capabilities(self.ledger)
        self._capability_values = self._capabilities.values
        self._channels = Contributions(self.ledger)
        self._step_wrappers = StepWrappers(self.ledger)
        self._cancellation = CancellationToken()
        self.cleanups: CleanupStack = CleanupStack()
        reports = Reports(self)
        self.watch: Watchdog = Watchdog(reports.unresponsive)
        self.hosting: TaskHost = TaskHost(self.cleanups, reports)
        self._meter = InjectionMeter()
        self.closing_time: TimeBudget = TimeBudget()
        self._is_closed = False
        self._hooks.belong_to(self._session_id, self._parent_id, self.watch, self.ledger, self.closing_time)

    # On the class: few sessions ever have one.
    _island: Island | None = None
    _approvals: Approvals | None = None

    def __repr__(self) -> str:
        points = self.mounts.points
        return (
            f"<ModuleCoordinator of session {self._session_id!r}: {len(points['tools'])} tools, "
            f"{len(points['providers'])} providers, {self._hooks.statistics().handlers} handlers>"
        )

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
        """The hook registry."""
        return self._hooks

    @property
    def mount_points(self) -> dict[str, Any]:
        """What is mounted where, live."""
        return self.mounts.points

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

    @property
    def _current_turn_injections(self) -> int:
        return self._meter.used

    @_current_turn_injections.setter
    def _current_turn_injections(self, value: int) -> None:
        self._meter.used = value

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
            "capabilities": list(self._capability_values),
            "has_approval_provider": self.approval_system is not None,
            "has_display_service": self.display_system is not None,
        }

    # ── capabilities and contributions ──

    def register_capability(self, name: str, value: Any) -> None:
        """Offer a value, often a function, to whoever asks for ``name``."""
        self._capabilities.register(name, value, None)

    def get_capability(self, name: str) -> Any:
        """The value registered under ``name``, or None."""
        return self._capability_values.get(name)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Have ``callback()`` called whenever ``channel`` is collected."""
        self._channels.register(channel, name, callback, None)

    async def collect_contributions(self, channel: str) -> list[Any]:
        """What the contributors of ``channel`` return, in order, without None."""
        return await self._channels.collect(
            channel, each=self.deadlines.contribution, total=self.deadlines.collection, watch=self.watch
        )

    # ── steps ──

    def register_step_wrapper(self, wrapper: StepWrapper) -> Callable[[], None]:
        """Have ``wrapper(step, run)`` called around every model call and tool call; returns a function that removes it."""
        return self._step_wrappers.register(wrapper, None)

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
        action = result.action
        asks = action == "ask_user" or bool(result.approval_gates)
        if action == "continue" and result.user_message is None and not result.context_injections and not asks:
            return result
        if action == "deny":
            await self._show(result, hook_name)
            return result
        if asks and (denial := await self._ask(result, event, hook_name)) is not None:
            return denial
        ephemeral = await self._inject(result, event, hook_name)
        await self._show(result, hook_name)
        if result.suppress_output:
            logger.debug("hook %r asks to suppress output on %r", hook_name, event)
        return processed_result(result, ephemeral)

    def reset_turn(self) -> None:
        """Start counting injections of a new turn."""
        self._meter.used = 0

    async def _ask(self, result: HookResult, event: str, hook_name: str) -> HookResult | None:
        approvals = self._approvals = self._approvals or Approvals(self._hooks.emit, self.watch)
        decision = await approvals.ask(self.approval_system, gates_of(result, hook_name), event)
        if decision.allowed:
            return None
        return HookResult(action="deny", reason=decision.reason, data=result.data)

    async def _inject(self, result: HookResult, event: str, hook_name: str) -> list[Any]:
        items = sanitised_injections(result, event, hook_name)
        if not items:
            return []
        self._meter.charge(items, size_limit=self.injection_size_limit, budget=self.injection_budget_per_turn)
        context = self.mounts.points["context"]
        add_message = getattr(context, "add_message", None)
        if add_message is None:
            return await store(items, None)

        async def add(message: dict[str, Any]) -> None:
            await self._call_bounded(add_message(message), "context.add_message")

        return await store(items, add)

    async def _show(self, result: HookResult, hook_name: str) -> None:
        text = result.user_message
        if not text:
            return
        source = f"hook:{result.user_message_source or hook_name}"
        if self.display_system is None:
            logger.debug("no display system for a message of %s: %s", source, text)
            return
        try:
            shown = call_foreign(self.display_system.show_message, text, result.user_message_level, source)
            await self._call_bounded(shown, "display.show_message")
        except Exception:  # the display system is foreign code; a message is not worth a turn
            logger.exception("the display system failed to show a message of %s", source)

    async def _call_bounded(self, answer: Any, what: str) -> None:
        if not isawaitable(answer):
            return
        try:
            await run_bounded(answer, self.deadlines.hook, what, self.watch)
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
        """Run ``fn(*args)`` beside the turns until it ends or the session closes.

        Args:
            fn: An async function.
            args: Its arguments.
            name: For reports.
            fatal: A crash ends the session instead of only this task.

        Raises:
            SessionStateError: Outside ``async with session:`` there is no task group to run it in.
        """
        self.start_soon_as(None, fn, *args, name=name, fatal=fatal)

    async def host(
        self, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Enter an async context manager in a task of its own and keep it open until the session closes.

        Returns:
            A function that leaves it earlier.

        Raises:
            SessionStateError: Outside ``async with session:`` there is no task group to run it in.
        """
        return await self.host_as(None, context_manager, name=name)

    async def run_section(
        self, fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None, shield: bool = False
    ) -> Any:
        """Run work in a child task so that its unwinding is not cut off by a second native cancel or the end of the loop."""
        return await run_section(fn, *args, name=name or getattr(fn, "__qualname__", None) or repr(fn), shield=shield)

    def register_cleanup(self, cleanup_fn: Any) -> None:
        """Have ``cleanup_fn()``, sync or async, called when the session closes; what is not callable is ignored."""
        self.register_cleanup_as(None, cleanup_fn)

    async def cleanup(self) -> None:
        """Run all registered cleanups, the last one first; each runs once.

        Raises:
            BaseException: The first Ctrl-C or exit among them, after all have run.
        """
        await run_section(self._unwind, None, name="amplifier cleanup", shield=True)

    async def cleanup_of(self, owner: str) -> None:
        """Run one module's cleanups."""
        await run_section(self._unwind, owner, name=f"amplifier cleanup of {owner}", shield=True)

    async def _unwind(self, owner: str | None) -> None:
        _, fatal = await self.unwind(self._time_for_closing(), owner)
        if fatal is not None:
            raise fatal

    async def unwind(
        self, budget: TimeBudget, owner: str | None = None
    ) -> tuple[list[CleanupFailure], BaseException | None]:
        """Run all cleanups, or one module's, inside a shielded section; see `CleanupStack.unwind`."""
        return await self.cleanups.unwind(each=self.deadlines.cleanup, budget=budget, watch=self.watch, owner=owner)

    def _time_for_closing(self) -> TimeBudget:
        """The session's own clock while it closes; a closing of its own otherwise."""
        if self.closing_time.until != math.inf:
            return self.closing_time
        teardown = self.deadlines.teardown
        return TimeBudget(math.inf if teardown is None else loop_clock()() + teardown)

    # ── asyncio on trio ──

    def asyncio_island(self) -> Island:
        """The asyncio event loop for modules that need one on trio; started for the first of them, ended after its cleanups."""
        if self._island is None:
            if self._is_closed:
                raise SessionStateError(f"session {self._session_id!r} is closed; it starts no asyncio island any more")
            from amplifier._islands import Island  # noqa: PLC0415 — asyncio on trio is for few sessions

            self._island = Island(self._session_id)
            self.cleanups.push(self.end_asyncio_island, None, what="asyncio island")
        return self._island

    async def end_asyncio_island(self) -> None:
        """End the island, if there is one; the session does it when it closes."""
        island, self._island = self._island, None
        if island is not None:
            await island.stop()

    # ── the session's side ──

    def open(self, plan: MountPlan, loop: Loop, announce: Callable[[], None]) -> None:
        """The session opens: take the plan's settings and let work be started."""
        self.deadlines = plan.deadlines
        self._is_closed = False
        self._hooks.set_default_timeout(plan.deadlines.hook)
        self.mounts.strict = plan.strict
        self.hosting.reopen()
        spawn = None if self.hosting.group is None else self.hosting.spawn
        self.watch.start(spawn)
        self._cancellation.attach(
            loop, spawn or loop.spawn_timer, None if spawn is None else announce, self.closing_time, self.watch
        )

    def begin_closing(self) -> TimeBudget:
        """The session closes: from now on everything shares one deadline."""
        teardown = self.deadlines.teardown
        if teardown is not None:
            now = loop_clock()()
            self.closing_time.until = now + teardown
            self.watch.tighten(now + self.closing_time.half(TERMINAL_SECONDS))
        return self.closing_time

    def refuse_work(self) -> None:
        """Everything was cleaned up: refuse what would be started now, for no one would stop it."""
        self.hosting.shut()
        self.watch.release_tasks()

    def end_closing(self) -> None:
        """The session is closed: drop whatever modules registered."""
        self._is_closed = True
        self.closing_time.until = math.inf
        self.forget_modules()
        self._cancellation.detach()

    # ── on behalf of a module ──

    def view_for(self, owner: str, on_failure: OnFailure = "continue") -> ModuleView:
        """The coordinator that the module ``owner`` gets."""
        return ModuleView(self, owner, on_failure)

    def mount_as(self, owner: str | None, mount_point: str, module: Any, name: str | None = None) -> None:
        """Mount on behalf of a module."""
        self.mounts.mount(mount_point, module, name, owner)

    def unmount_as(self, owner: str | None, mount_point: str, name: str | None = None) -> None:
        """Unmount on behalf of a module."""
        self.mounts.unmount(mount_point, name, owner)

    def register_cleanup_as(self, owner: str | None, cleanup_fn: Any) -> None:
        """Register a cleanup on behalf of a module."""
        if not callable(cleanup_fn):
            return
        if self._is_closed:
            raise SessionStateError(
                f"register_cleanup({getattr(cleanup_fn, '__qualname__', cleanup_fn)}) comes too late: session "
                f"{self._session_id!r} is closed and would never run it; close the resource yourself"
            )
        self.cleanups.push(cleanup_fn, owner)

    def register_capability_as(self, owner: str | None, name: str, value: Any) -> None:
        """Register a capability on behalf of a module."""
        self._capabilities.register(name, value, owner)

    def register_contributor_as(self, owner: str | None, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Register a contributor on behalf of a module."""
        self._channels.register(channel, name, callback, owner)

    def register_step_wrapper_as(self, owner: str | None, wrapper: StepWrapper) -> Callable[[], None]:
        """Register a step wrapper on behalf of a module."""
        return self._step_wrappers.register(wrapper, owner)

    def start_soon_as(
        self,
        owner: str | None,
        fn: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
        fatal: bool = False,
    ) -> None:
        """Start background work on behalf of a module."""
        if not callable(fn):
            raise TypeError(f"start_soon needs an async function and its arguments, got {fn!r}")
        name = name or getattr(fn, "__qualname__", None) or repr(fn)
        self.hosting.start_soon(fn, args, name=name, owner=owner, fatal=fatal)

    async def host_as(
        self, owner: str | None, context_manager: AbstractAsyncContextManager[Any], *, name: str | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Host a context manager on behalf of a module."""
        host = await self.hosting.host(context_manager, name=name or owner or "application", owner=owner)
        return host.leave

    async def undo(self, owner: str) -> None:
        """Take back everything a module registered: its cleanups run, its mounts, handlers and offers go.

        What its views register from then on is refused, cleanups excepted.
        """
        try:
            await self.cleanup_of(owner)
        finally:
            self.ledger.undo(owner)

    def forget_modules(self) -> None:
        """Drop whatever modules registered; the session is closed.

        From now on it is not kept alive from here: a closed session goes with the last reference to it.
        """
        self.ledger.undo_all()
        self.watch.stop()
        if self._session is not None and type(self._session) is not weakref.ref:
            self._session = weakref.ref(self._session)
