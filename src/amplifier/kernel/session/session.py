"""The session: open, mount the plan, execute, fork, close.

    async with AmplifierSession(plan) as session:
        text = await session.execute("prompt")

After the block, however it was left, nothing of the session remains (L1). The order of opening is in `opening`, a turn in `turn`,
the states in `lifecycle`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import anyio
import attrs
import orjson

from amplifier._json import redact_secrets, redact_text
from amplifier.contracts import DEFAULT, Inherited
from amplifier.contracts._containment import is_cancellation_type
from amplifier.errors import SessionStateError
from amplifier.events import CLEANUP_FAILED, SESSION_END, SESSION_FORK
from amplifier.loading import ModuleLoader
from amplifier.models import SessionStatus
from amplifier.plan import MountPlan, merge_plans, new_session_id, parse_plan, validate_session_id

from ..coordinator.coordinator import ModuleCoordinator
from ..hooks.registry import check_timeout
from ..runtime.backend import Loop, run_guarded, run_shielded
from ..runtime.cleanup_stack import CleanupFailure
from ..runtime.deadlines import DeadlinePassed
from .lifecycle import Lifecycle, State
from .opening import ModuleFailure, Opening, release_loader
from .stream import TurnStream
from .turn import TurnRunner

logger = logging.getLogger("amplifier.session")

# Lifecycles, not ids: two sessions may have one id. Not sessions: a task that a turn leaves behind keeps its context.
_inside_turn_of: ContextVar[tuple[Lifecycle, ...]] = ContextVar("amplifier_inside_turn_of", default=())


@attrs.frozen
class SessionStatistics:
    """A session at one moment."""

    state: str
    turn_running: bool
    cleanups: int
    handlers: int
    failures: int


class AmplifierSession:
    """One agent: its modules, its turns, its life.

    Args:
        config: The mount plan.
        loader: Finds modules; a `ModuleLoader` of the session's own if absent.
        session_id: Generated if absent.
        parent_id: The session this one was forked from.
        approval_system: Answers hooks that ask the user; without one they are denied.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.

    Attributes:
        coordinator: What its modules see of it; ``hooks`` and ``cancellation`` are there.
        status: Where the session and its latest turn stand.
        failures: Modules of the plan that could not be used.
        cleanup_failures: Steps of the closing that failed or were cut off.

    Raises:
        PlanError: The plan or an id is wrong; all problems at once.
    """

    def __init__(
        self,
        config: dict[str, Any],
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
        self.config = config
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
        self._turns = TurnRunner(self.coordinator, self.status, is_resumed)
        self._parent: AmplifierSession | None = None
        self._loop: Loop | None = None
        self._settled: anyio.Event | None = None
        self._turn_over: anyio.Event | None = None

    def __repr__(self) -> str:
        turn = ", turn running" if self._lifecycle.turn_running else ""
        return f"<AmplifierSession {self.session_id!r} {self._lifecycle.state.value}{turn}>"

    def statistics(self) -> SessionStatistics:
        """The session's present state in numbers."""
        return SessionStatistics(
            state=self._lifecycle.state.value,
            turn_running=self._lifecycle.turn_running,
            cleanups=len(self.coordinator.cleanups.entries),
            handlers=self.coordinator.hooks.statistics().handlers,
            failures=len(self.failures),
        )

    @property
    def initialized(self) -> bool:
        """Whether the session is open."""
        return self._lifecycle.state is State.OPEN

    # ── opening ──

    async def __aenter__(self) -> Self:
        self._lifecycle.move(State.OPENING)
        group = anyio.create_task_group()
        await group.__aenter__()
        self.coordinator.hosting.group = group
        try:
            await self._open()
        except BaseException as exc:
            try:
                await self._leave_group(exc)
            finally:
                self.coordinator.hosting.group = None
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
        try:
            await run_guarded(self._mount_plan, name=f"amplifier open {self.session_id}")
            self._lifecycle.move(State.OPEN)
        except BaseException as exc:
            self.status.status = "cancelled" if is_cancellation_type(exc) else "failed"
            self._lifecycle.move(State.CLOSING)
            await run_shielded(self._close, False, name=f"amplifier close {self.session_id}")
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

    async def _mount_plan(self) -> None:
        coordinator = self.coordinator
        plan = self._read_plan()
        self._loop = Loop()
        self._turns.closing = False
        self.failures = []
        self.cleanup_failures = []
        self.status.status = "running"
        self.status.ended_at = None
        coordinator.deadlines = plan.deadlines
        coordinator.hooks.set_default_timeout(plan.deadlines.hook)
        coordinator.mounts.strict = plan.strict
        coordinator.hosting.is_shut = False
        spawn = None if coordinator.hosting.group is None else coordinator.hosting.spawn
        coordinator.watch.start(spawn)
        announce = None if spawn is None else self._announce_cancel
        coordinator.cancellation.attach(self._loop, spawn or self._loop.spawn_timer, announce)
        if self._parent is not None:
            self._parent.coordinator.cancellation.register_child(coordinator.cancellation)
        for warning in plan.warnings:
            logger.warning("mount plan of session %r: %s", self.session_id, warning)
        opening = Opening(plan, coordinator, coordinator.loader)
        try:
            await opening.run()
        finally:
            self._take_failures(opening.take_failures())
        if self.parent_id:
            await coordinator.hooks.emit(SESSION_FORK, self._lineage(raw=plan.raw))

    def _read_plan(self) -> MountPlan:
        """The plan as it is now: between construction and opening the application may have changed its dict."""
        parsed, self._parsed = self._parsed, None
        if self._parent is not None:
            return parse_plan(self.config, base_deadlines=self._parent.coordinator.deadlines)
        if parsed is not None and parsed[1] is not None and parsed[1] == _text_of(self.config):
            return parsed[0]
        return parse_plan(self.config)

    def _take_failures(self, failures: list[ModuleFailure]) -> None:
        self.failures = failures
        if failures:
            last = failures[-1]
            self.status.last_error = {
                "type": type(last.error).__name__,
                "message": redact_text(str(last.error)),
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

    # ── turns ──

    async def execute(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT) -> str:
        """Run one turn.

        Args:
            prompt: What the user says.
            timeout: Seconds for the whole turn; None for no limit; left out, the plan's ``turn`` deadline.

        Returns:
            The orchestrator's final text.

        Raises:
            SessionBusyError: Another turn is running.
            SessionStateError: The session is not open, or belongs to another event loop.
            ExecutionCancelled: The session's token asked for an immediate stop.
            ExecutionTimeout: The timeout passed.
            ContractError: The orchestrator returned something else than text.
        """
        if not isinstance(prompt, str):
            raise TypeError(f"a prompt must be a str, got {type(prompt).__name__}: {prompt!r:.80}")
        seconds = self.coordinator.deadlines.turn if timeout is DEFAULT else check_timeout(timeout)
        self._lifecycle.begin_turn()
        inside = _inside_turn_of.set((*_inside_turn_of.get(), self._lifecycle))
        try:
            if self._loop is None or not self._loop.is_running_here():
                raise SessionStateError(f"session {self.session_id!r} was opened on another event loop; use it there")
            return await run_guarded(
                self._turns.run,
                prompt,
                seconds,
                name=f"amplifier turn {self.session_id}",
                is_unwinding=self._turns.is_unwinding,
            )
        finally:
            _inside_turn_of.reset(inside)
            self._lifecycle.end_turn()
            if self._turn_over is not None:
                self._turn_over.set()

    def stream(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT) -> TurnStream:
        """Run one turn and watch it: ``async with session.stream(prompt) as events: async for event in events``.

        Leaving the block early cancels the turn. What `execute` would raise is raised from the iteration.
        """
        return TurnStream(lambda: self.execute(prompt, timeout=timeout), self.coordinator.hooks)

    def _announce_cancel(self) -> None:
        """A request arrived: tell the hooks beside the running turn."""
        self.coordinator.hosting.spawn(self._announce_cancel_shielded)

    async def _announce_cancel_shielded(self) -> None:
        await run_shielded(self._turns.announce_requests, name="amplifier cancel:requested")

    # ── children ──

    def fork(self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None) -> AmplifierSession:
        """A child session with this one's plan under ``overlay``, not opened yet.

        Once opened, the child is stopped with its parent and inherits the parent's deadlines.

        Raises:
            PlanError: The merged plan is wrong.
        """
        own = isinstance(self.loader, ModuleLoader)
        child = AmplifierSession(
            merge_plans(self.config, {} if overlay is None else overlay),
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
    ) -> bool | None:  # a plain bool tells type checkers that `return await session.execute(…)` may not be reached
        problem: BaseException | None = None
        try:
            await self.cleanup()
        except BaseException as error:  # noqa: BLE001 — re-raised below, when the task group has been left
            problem = error
        try:
            crashed = await self._leave_group(exc)
        finally:
            self.coordinator.hosting.group = None
        if problem is not None:
            raise problem
        return crashed

    async def cleanup(self) -> None:
        """Close the session: ``session:end``, then all cleanups in reverse, then the loader's paths.

        Shielded from cancellation; every step has a deadline. Calling it again, also at the same time, is fine.

        Raises:
            SessionStateError: Called from inside one of the session's own turns.
            BaseException: The first Ctrl-C or exit that a cleanup raised, after all have run.
        """
        if self._lifecycle.turn_running and self._lifecycle in _inside_turn_of.get():
            raise SessionStateError(
                f"session {self.session_id!r} cannot be closed from inside its own turn; "
                "request_cancel() it and close it where it was opened"
            )
        while self._lifecycle.state is State.OPENING:  # when we wake, it may be opened a second time already
            await self._until_settled()
        if self._lifecycle.state is State.OPEN:
            # In the caller's own step, before the shielded section gets its task: a second caller must see it at once.
            self._lifecycle.move(State.CLOSING)
            await run_shielded(self._close, True, name=f"amplifier close {self.session_id}")
        elif self._lifecycle.state is State.CLOSING:
            await self._until_settled()
        else:
            await self.coordinator.cleanup()

    async def _close(self, was_open: bool) -> None:
        """Inside a shielded section: end everything, whatever fails on the way."""
        fatal: BaseException | None = None
        try:
            await self._end_running_turn()
            if was_open:
                fatal = await self._say_end()
            self.cleanup_failures, interrupt = await self._unwind()
            fatal = fatal or interrupt
            self.coordinator.hosting.is_shut = True  # from here on nobody would stop what is started
            self.coordinator.watch.spawn = None
            for failure in list(self.cleanup_failures):
                fatal = await self._say_cleanup_failed(failure) or fatal
            late_failures, interrupt = await self._unwind()
            self.cleanup_failures += late_failures
            fatal = fatal or interrupt
        finally:
            self._release()
            self._lifecycle.move(State.CLOSED)
            self._settle()
        if fatal is not None:
            raise fatal

    async def _unwind(self) -> tuple[list[CleanupFailure], BaseException | None]:
        coordinator = self.coordinator
        return await coordinator.cleanups.unwind(
            each=coordinator.deadlines.cleanup, total=coordinator.deadlines.teardown, watch=coordinator.watch
        )

    def _release(self) -> None:
        """Let go of everything that reaches beyond the session."""
        coordinator = self.coordinator
        coordinator.forget_modules()
        coordinator.cancellation.detach()
        if self._parent is not None:
            self._parent.coordinator.cancellation.unregister_child(coordinator.cancellation)
        self.status.ended_at = datetime.now(UTC)
        release_loader(coordinator)

    async def _end_running_turn(self) -> None:
        """A turn that runs in another task is cancelled and waited for: nothing may write into a closed session."""
        if not self._lifecycle.turn_running:
            return
        self._turn_over = anyio.Event()
        self._turns.closing = True
        if self._turns.scope is not None:
            self._turns.scope.cancel()
        while self._lifecycle.turn_running:
            with anyio.move_on_after(self.coordinator.deadlines.teardown):
                await self._turn_over.wait()
                return
            logger.error("a turn of session %r does not end although it was cancelled; waiting", self.session_id)

    async def _say_end(self) -> BaseException | None:
        if self.status.status == "running":
            self.status.status = "completed"
        fatal = await self._tell(self._turns.announce_requests)  # of a stop that met no turn
        details = {"session_id": self.session_id, "status": self.status.status}
        return await self._tell(self.coordinator.hooks.emit, SESSION_END, details) or fatal

    async def _say_cleanup_failed(self, failure: CleanupFailure) -> BaseException | None:
        details: dict[str, Any] = {
            "module_id": failure.module,
            "cleanup": failure.what,
            "error": redact_text(str(failure.error)),
            "error_type": type(failure.error).__name__,
            "abandoned": failure.overran,
        }
        if isinstance(failure.error, DeadlinePassed):
            details["seconds"] = failure.error.seconds
        return await self._tell(self.coordinator.hooks.emit, CLEANUP_FAILED, details)

    async def _tell(self, announce: Callable[..., Awaitable[Any]], *args: Any) -> BaseException | None:
        """Tell the hooks that the session closes; a Ctrl-C or exit in one is handed back, for the rest must run."""
        try:
            await announce(*args)
        except Exception:
            logger.exception(
                "session %r could not announce %s", self.session_id, args[0] if args else "a request to stop"
            )
        except BaseException as exc:  # noqa: BLE001 — raised when everything has been closed
            return exc
        return None

    async def _leave_group(self, exc: BaseException | None) -> bool:
        """Leave the task group, in which nothing runs any more; True when ``exc`` was only our own way of stopping.

        An exception is handed to the group only when the group's own scope was cancelled, by a crashed background task that
        asked to end the session; otherwise the group would wrap it, and errors keep their type (L9).
        """
        hosting = self.coordinator.hosting
        group = hosting.group
        if group is None:
            return False
        if not group.cancel_scope.cancel_called:
            await group.__aexit__(None, None, None)
            return False
        crashes, hosting.fatal = hosting.fatal, []
        others: list[BaseException] = []
        try:
            if exc is None:
                await group.__aexit__(None, None, None)
            else:
                await group.__aexit__(type(exc), exc, exc.__traceback__)
        except BaseExceptionGroup as wrapped:
            others = list(wrapped.exceptions)
        if not crashes and not others:
            return True
        if others or len(crashes) != 1:
            what = f"session {self.session_id!r} was ended by crashed background work"
            raise BaseExceptionGroup(what, [*crashes, *others])
        raise crashes[0]


def _text_of(config: Any) -> bytes | None:
    """A plan as text, which tells in no time whether it has changed; None when it holds more than JSON can tell."""
    try:
        return orjson.dumps(config, None, orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        return None
