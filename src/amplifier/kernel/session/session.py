"""The session: open, mount the plan, execute, fork, close.

    async with AmplifierSession(plan) as session:
        text = await session.execute("prompt")

After the block, however it was left, nothing of the session remains (L1). The order of opening is in `opening`, a turn in `turn`,
the states in `lifecycle`.
"""

from __future__ import annotations

import logging
import warnings
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import attrs
import orjson

from amplifier._json import redact_secrets, redact_text
from amplifier.contracts._containment import is_cancellation_type, text_of
from amplifier.contracts._scopes import cancel_scope
from amplifier.errors import ExecutionCancelled, SessionStateError
from amplifier.events import SESSION_FORK
from amplifier.loading import ModuleLoader
from amplifier.models import SessionStatus
from amplifier.plan import (
    BudgetLimits,
    MountPlan,
    PlanDict,
    merge_plans,
    new_session_id,
    parse_plan,
    validate_session_id,
)

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.await_location import forget_frames
from ..runtime.backend import Loop, current_raw_task, task_name
from ..runtime.cancellation import CancellationToken
from ..runtime.cleanup_stack import CleanupFailure
from ..runtime.running_call import RunningCall
from ..runtime.sections import protect_from_interrupts, run_section
from ..runtime.task_host import SessionTask, hosted_by
from .closing import Closing
from .lifecycle import Lifecycle, State
from .opening import ModuleFailure, Opening, release_loader
from .turn import TurnRunner, metered_turn
from .turn_access import TurnAccess, inside_turn_of

if TYPE_CHECKING:  # a package that only budgets need
    from amplifier.budget import Budget

logger: logging.Logger = logging.getLogger("amplifier.session")


@attrs.frozen
class SessionStatistics:
    """A session at one moment."""

    state: str
    turn_running: bool
    cleanups: int
    handlers: int
    failures: int


class AmplifierSession(TurnAccess):
    """One agent: its modules, its turns, its life.

    Args:
        config: The mount plan; `amplifier.plan.PlanDict` describes it to type checkers.
        loader: Finds modules; a `ModuleLoader` of the session's own if absent.
        session_id: Generated if absent.
        parent_id: The session this one was forked from.
        approval_system: Answers hooks that ask the user; without one they are denied.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.

    Attributes:
        coordinator: What its modules see of it; ``hooks`` and ``cancellation`` are there.
        status: State of the session and of its latest turn.
        failures: Modules of the plan that could not be used.
        cleanup_failures: Steps of the closing that failed or were cut off.

    Raises:
        PlanError: The plan or an id is wrong; all problems at once.
    """

    def __init__(
        self,
        config: dict[str, Any] | PlanDict,
        loader: Any = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        approval_system: Any = None,
        display_system: Any = None,
        is_resumed: bool = False,
    ) -> None:
        plan = parse_plan(config)
        # Until it is opened: thousands of sessions may be live, and none of them needs its plan twice.
        self._parsed: tuple[MountPlan, bytes | None] | None = (plan, _text_of(config))
        self.config: dict[str, Any] = cast("dict[str, Any]", config)
        self.session_id: str = new_session_id() if session_id is None else validate_session_id(session_id)
        self.parent_id: str | None = None if parent_id is None else validate_session_id(parent_id)
        self.is_resumed = is_resumed
        self.status: SessionStatus = SessionStatus(session_id=self.session_id)
        self.failures: list[ModuleFailure] = []
        self.cleanup_failures: list[CleanupFailure] = []
        self.coordinator: ModuleCoordinator = ModuleCoordinator(self, approval_system, display_system)
        self.coordinator.deadlines = plan.deadlines
        self.loader: Any = ModuleLoader(self.coordinator) if loader is None else loader
        self.coordinator.loader = self.loader
        self._lifecycle = Lifecycle(self.session_id)
        self._turns = TurnRunner(self.coordinator, self.status, self._lifecycle, is_resumed)
        self._parent: AmplifierSession | None = None
        self._loop: Loop | None = None
        self._settled: anyio.Event | None = None
        self._opened_in: Any = None

    def __repr__(self) -> str:
        turn = ", turn running" if self._lifecycle.turn_running else ""
        return f"<AmplifierSession {self.session_id!r} {self._lifecycle.state.value}{turn}>"

    # Bound early: at the end of the interpreter the names of the module are gone before the last session is.
    def __del__(self, is_open: State = State.OPEN, warn: Any = warnings.warn) -> None:
        lifecycle: Lifecycle | None = getattr(self, "_lifecycle", None)  # None when the plan was refused
        if lifecycle is not None and lifecycle.state is is_open:
            warn(
                f"session {lifecycle.session_id!r} was dropped while it was open, so its cleanups never ran; open it with "
                "`async with`, or call cleanup() after initialize()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def statistics(self) -> SessionStatistics:
        """The session's present state in numbers."""
        return SessionStatistics(
            state=self._lifecycle.state.value,
            turn_running=self._lifecycle.turn_running,
            cleanups=len(self.coordinator.cleanups),
            handlers=self.coordinator.hooks.statistics().handlers,
            failures=len(self.failures),
        )

    @property
    def initialized(self) -> bool:
        """Whether the session is open."""
        return self._lifecycle.state is State.OPEN

    @property
    def budget(self) -> Budget | None:
        """What the session may use and has used; None before it is opened, and without a ``session.budget`` here or above."""
        meter = self._turns.meter
        return None if meter is None else meter.budget

    def running_call(self) -> RunningCall:
        """What the session is doing, for reports about sessions that hang."""
        return RunningCall(coordinator=self.coordinator, label=self._lifecycle.activity)

    # ── opening ──

    async def __aenter__(self) -> Self:
        self._lifecycle.move(State.OPENING)
        group = anyio.create_task_group()
        await group.__aenter__()
        self.coordinator.hosting.use_group(group)
        self._opened_in = current_raw_task()
        try:
            await self._open()
        except BaseException as exc:
            await self._leave_group(exc)
            raise
        return self

    async def initialize(self) -> None:
        """Open the session by hand; `cleanup` must follow. Prefer ``async with``.

        Modules that need background work or a task of their own cannot be mounted this way. A second call while the first is
        under way waits for it.

        Raises:
            SessionStateError: It is being closed, or the other call that was opening it failed.
        """
        state = self._lifecycle.state
        if state is State.OPEN:
            return
        if state is State.OPENING:
            await self._until_settled()
            if not self.initialized:
                raise SessionStateError(f"session {self.session_id!r} could not be opened by the call that was at it")
            return
        self._lifecycle.move(State.OPENING)
        await self._open()

    async def _open(self) -> None:
        """Mount the plan; whatever goes wrong, what was mounted is cleaned up before it leaves here."""
        parent = self._parent
        tokens = [session.coordinator.cancellation for session in (self, parent) if session is not None]
        was_stopped = any(
            token.is_immediate for token in tokens
        )  # now: the section begins a turn of the event loop later
        try:
            await run_section(self._mount_plan, was_stopped, name=f"amplifier open {self.session_id}", isolate=True)
            self._lifecycle.move(State.OPEN)
        except BaseException as exc:
            stopped = is_cancellation_type(exc) or isinstance(exc, ExecutionCancelled)
            self.status.status = "cancelled" if stopped else "failed"
            self._lifecycle.move(State.CLOSING)
            await self._run_closing(was_open=False)
            raise
        self._settle()

    async def _until_settled(self) -> None:
        """Wait for the end of the opening or closing that another call is at; the event is made by those who wait."""
        settled = self._settled = self._settled or anyio.Event()
        await settled.wait()

    def _settle(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set()

    async def _mount_plan(self, was_stopped: bool) -> None:
        coordinator = self.coordinator
        if self._parent is not None and self._parent._lifecycle.state in (State.CLOSING, State.CLOSED):
            raise SessionStateError(
                f"session {self.session_id!r} cannot be opened: session {self.parent_id!r}, from which it was forked, is "
                f"{self._parent._lifecycle.state.value}; open and close a child within its parent"
            )
        plan = self._read_plan()
        self._loop = Loop()
        self.failures = []
        self.cleanup_failures = []
        self.status.status = "running"
        self.status.ended_at = None
        self._turns.reopen()
        self._open_budget(plan)
        protect_from_interrupts(AmplifierSession.__aexit__, AmplifierSession.cleanup, SessionTask.run)
        coordinator.open(plan, self._loop, self._announce_cancel)
        token = coordinator.cancellation
        if self._parent is not None:
            self._parent.coordinator.cancellation.register_child(token)
        for warning in plan.warnings:
            logger.warning("mount plan of session %r: %s", self.session_id, warning)
        await self._mount_until_stopped(plan, None if was_stopped else token)

    async def _mount_until_stopped(self, plan: MountPlan, token: CancellationToken | None) -> None:
        """Mount everything; a stop that is requested meanwhile, also of the parent, ends the opening.

        A token that was set before lets the session open and refuses its turns, until it is reset.
        """
        opening = Opening(plan, self.coordinator, self.coordinator.loader)
        try:
            with cancel_scope() as scope:
                if token is not None:
                    token.bind(scope)
                await opening.run()
                if self.parent_id:
                    await self.coordinator.hooks.emit(SESSION_FORK, self._lineage(raw=plan.raw))
        finally:
            if token is not None:
                token.unbind()
            self._take_failures(opening.take_failures())
        if token is not None and scope.cancel_called:
            reason = f" ({token.reason})" if token.reason else ""
            raise ExecutionCancelled(
                f"session {self.session_id!r} was stopped while it was being opened{reason}",
                session_id=self.session_id,
                reason=token.reason,
            )

    def _read_plan(self) -> MountPlan:
        """The plan as it is now: between construction and opening the application may have changed its dict."""
        parsed, self._parsed = self._parsed, None
        if self._parent is not None:
            return parse_plan(self.config, base_deadlines=self._parent.coordinator.deadlines)
        if parsed is not None and parsed[1] is not None and parsed[1] == _text_of(self.config):
            return parsed[0]
        return parse_plan(self.config)

    def _open_budget(self, plan: MountPlan) -> None:
        """Meter the session's calls if its plan has a budget, or if it is part of what a session with a budget does."""
        meter = self._turns.meter
        above = (None if self._parent is None else self._parent._turns.meter) or metered_turn.get()
        if meter is None and above is None and plan.budget is None:
            return
        from amplifier.budget import Budget, SessionMeter  # noqa: PLC0415 — only sessions with a budget need it

        limits = plan.budget or BudgetLimits()
        if meter is None:
            coordinator, parent = self.coordinator, None if above is None else above.budget
            budget = Budget(limits, session_id=self.session_id, hooks=coordinator.hooks, parent=parent)
            meter = self._turns.meter = SessionMeter(budget)
            meter.watch(coordinator)
            coordinator.mounts.meter = meter.meter
        else:  # opened again: what was used counts on
            meter.budget.use_limits(limits)

    def _take_failures(self, failures: list[ModuleFailure]) -> None:
        self.failures = failures
        if failures:
            last = failures[-1]
            self.status.last_error = {
                "type": type(last.error).__name__,
                "message": redact_text(text_of(last.error)),
                "module_id": last.module_id,
                "failed_modules": [failure.module_id for failure in failures],
            }

    def _lineage(self, *, raw: bool) -> dict[str, Any]:
        details: dict[str, Any] = {"parent": self.parent_id, "session_id": self.session_id}
        metadata = (self.config.get("session") or {}).get("metadata")
        if metadata:
            details["metadata"] = metadata
        if raw:
            details["raw"] = redact_secrets(self.config)
        return details

    # ── cancellation ──

    def _announce_cancel(self) -> None:
        """A request arrived: inform the hooks beside the running turn; a session that is closing does it by itself."""
        if self.coordinator.hosting.takes_work:
            self.coordinator.hosting.spawn(self._announce_cancel_shielded)

    async def _announce_cancel_shielded(self) -> None:
        try:
            await run_section(self._turns.announce_requests, name="amplifier cancel:requested", shield=True)
        except KeyboardInterrupt as exc:  # out of a callback: in this task it would end the whole loop
            await self.coordinator.hosting.crashed("cancel callbacks", None, exc, fatal=True)

    # ── children ──

    def fork(self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None) -> AmplifierSession:
        """A child session with this one's plan under ``overlay``, not opened yet.

        Once opened, the child is stopped with its parent, also when the parent closes, and inherits the parent's deadlines; after
        that it cannot be opened. What it uses counts in the parent's budget; with a ``session.budget`` in ``overlay`` it has one
        of its own in addition.

        Raises:
            PlanError: The merged plan is wrong.
        """
        own = isinstance(self.loader, ModuleLoader)
        base = self.config
        if self._turns.meter is not None and "budget" in base["session"]:  # it holds for the child without being copied
            base = {**base, "session": {key: value for key, value in base["session"].items() if key != "budget"}}
        child = AmplifierSession(
            merge_plans(base, {} if overlay is None else overlay),
            loader=None if own else self.loader,
            session_id=session_id,
            parent_id=self.session_id,
            approval_system=self.coordinator.approval_system,
            display_system=self.coordinator.display_system,
        )
        if own:
            child.loader = child.coordinator.loader = self.loader.for_child(child.coordinator)
        resolver = self.coordinator.get("module-source-resolver")
        if resolver is not None:
            child.coordinator.mount_as(None, "module-source-resolver", resolver)
        child._parent = self
        return child

    @staticmethod
    def _merge_configs(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
        """Deep merge of two plans, the overlay winning; the older name of `amplifier.plan.merge_plans`."""
        return merge_plans(base, overlay)

    # ── closing ──

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> (
        bool | None
    ):  # with a plain bool type checkers assume that `return await session.execute(…)` may not be reached
        problem: BaseException | None = None
        try:
            await self.cleanup()
        except BaseException as error:  # noqa: BLE001 — re-raised below, when the task group has been left
            problem = error
        while self._lifecycle.state is State.CLOSING:  # another task is at it, and we were cancelled while we waited
            await run_section(self._until_settled, name=f"amplifier close {self.session_id}", shield=True)
        crashed = await self._leave_group(exc)
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # an exception that names its own frame is a reference cycle
        return crashed

    async def cleanup(self) -> None:
        """Close the session: ``session:end``, then all cleanups in reverse, then the loader's paths.

        Shielded from cancellation; every step has a deadline. Calling it again, also at the same time, is fine.

        Raises:
            SessionStateError: Called from inside one of the session's own turns or structured modules, which would wait for
                itself.
            BaseException: The first Ctrl-C that hit a cleanup, after all have run.
        """
        inside = "turn" if self._lifecycle.turn_running and self._lifecycle in inside_turn_of.get() else None
        if self.coordinator.hosting in hosted_by.get():
            inside = "structured module"
        if inside is not None:
            raise SessionStateError(
                f"session {self.session_id!r} cannot be closed from inside its own {inside}; "
                "request_cancel() it and close it where it was opened"
            )
        while self._lifecycle.state is State.OPENING:  # when we wake, it may be opened a second time already
            await self._until_settled()
        if self._lifecycle.state is State.OPEN:
            if self._loop is not None and not self._loop.has_ended():  # else there is no other place left to close it
                self._require_own_loop()
            # In the caller's own step, before the shielded section gets its task: a second caller must see it at once.
            self._lifecycle.move(State.CLOSING)
            await self._run_closing(was_open=True)
        elif self._lifecycle.state is State.CLOSING:
            await self._until_settled()
        else:
            await self.coordinator.cleanup()

    async def _run_closing(self, *, was_open: bool) -> None:
        await run_section(self._close, was_open, name=f"amplifier close {self.session_id}", shield=True, isolate=True)

    async def _close(self, was_open: bool) -> None:
        """Inside a shielded section: end everything, whatever fails on the way."""
        closing = Closing(self.coordinator, self._turns, self.status)
        try:
            await closing.run(was_open=was_open)
        finally:
            self.cleanup_failures = closing.failures
            if was_open:
                forget_frames(failure.error for failure in self.failures)
                forget_frames(failure.error for failure in closing.failures)
            self._release()
            self._lifecycle.move(State.CLOSED)
            self._settle()

    def _release(self) -> None:
        """Let go of everything that reaches beyond the session."""
        coordinator = self.coordinator
        coordinator.end_closing()
        if self._parent is not None:
            self._parent.coordinator.cancellation.unregister_child(coordinator.cancellation)
        self.status.ended_at = datetime.now(UTC)
        release_loader(coordinator)

    async def _leave_group(self, exc: BaseException | None) -> bool:
        """Leave the session's task group, which only the task that entered it can."""
        opened_in, self._opened_in = self._opened_in, None
        hosting = self.coordinator.hosting
        if hosting.group is not None and opened_in is not current_raw_task():
            hosting.use_group(None)
            raise SessionStateError(
                f"session {self.session_id!r} was opened in task {task_name(opened_in)!r} and left in task "
                f"{task_name(current_raw_task())!r}; it has been closed, but `async with` must be left in the task that entered "
                "it: keep both in one function, or open it with initialize() and close it with cleanup()"
            ) from exc
        return await hosting.leave_group(exc, self.session_id)


def _text_of(config: Any) -> bytes | None:
    """A plan as text, to see cheaply whether it has changed; None if it holds values that are not JSON."""
    try:
        return orjson.dumps(config, None, orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        return None
