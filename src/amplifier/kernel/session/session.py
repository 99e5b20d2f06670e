"""The session: open, mount the plan, execute, fork, close.

    async with AmplifierSession(plan) as session:
        text = await session.execute("prompt")

After the block, however it was left, nothing of the session remains (L1). The order of opening is in `opening`, a turn and the states of a
session in `turn`, closing at the end of this file.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import anyio
import attrs

from amplifier._json import redact_secrets
from amplifier.contracts import DEFAULT, Inherited
from amplifier.contracts._cancellation import cancel_scope, is_cancellation_type
from amplifier.errors import ExecutionCancelled, SessionBusyError, SessionStateError
from amplifier.events import CLEANUP_FAILED, SESSION_END, SESSION_FORK
from amplifier.loading import ModuleLoader
from amplifier.models import Prompt, SessionStatus
from amplifier.models._prompts import read_prompt
from amplifier.plan import (
    BudgetLimits,
    MountPlan,
    PlanDict,
    merge_plans,
    new_session_id,
    parse_plan,
    validate_session_id,
)
from amplifier.plan._dicts import replace_things
from amplifier.turns import StopReport, TurnReport

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.backend import Loop, RunningCall, current_raw_task, forget_frames, interrupts, release, task_name
from ..runtime.cancellation import CancellationToken
from ..runtime.deadlines import DeadlinePassed, check_timeout, failure_text
from ..runtime.tasks import CleanupFailure, hosted_by
from ..runtime.uninterrupted import protect_kernel, run_section
from .opening import ModuleFailure, Opening, release_loader
from .stream import TextStream, TurnStream
from .turn import Lifecycle, State, TurnRunner, metered_turn

if TYPE_CHECKING:  # packages that only types, typed answers and budgets need
    from anyio.abc import TaskGroup

    from amplifier.answers import AnswerFormat
    from amplifier.budget import Budget

T = TypeVar("T")

# Lifecycles, not ids: two sessions may have one id. Not sessions: a task that a turn leaves behind keeps its context.
inside_turn_of: ContextVar[tuple[Lifecycle, ...]] = ContextVar("amplifier_inside_turn_of", default=())

logger: logging.Logger = logging.getLogger("amplifier.session")


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
        self._closing: _Closing | None = None
        self._hosted: TurnStream[str] | None = None  # the turn of the latest text stream

    def __repr__(self) -> str:
        turn = ", turn running" if self._lifecycle.turn_running else ""
        return f"<AmplifierSession {self.session_id!r} {self._lifecycle.state.value}{turn}>"

    # Bound early: at the end of the interpreter the names of the module are gone before the last session is.
    def __del__(self, idle: Any = (State.NEW, State.CLOSED), warn: Any = warnings.warn) -> None:
        lifecycle: Lifecycle | None = getattr(self, "_lifecycle", None)  # None when the plan was refused
        if lifecycle is not None and lifecycle.state not in idle:
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

    @property
    def last_turn(self) -> TurnReport | None:
        """What the latest turn was, however it ended; a call that a busy session refuses, or with wrong arguments, is none."""
        latest = self._turns.latest
        return None if latest is None else latest.report()

    @property
    def last_stop(self) -> StopReport | None:
        """What the latest stop ended, how long each part took and what would not stop: of the closing, else of the latest turn, if
        that was cancelled or ran out of time; None if nothing was stopped.
        """
        hosting, is_closed = self.coordinator.hosting, self._lifecycle.state is State.CLOSED
        return StopReport.of(self._turns.latest, self.coordinator.cleanups.ran if is_closed else None, hosting.late)

    async def messages(self) -> list[dict[str, Any]]:
        """The whole conversation, as its context keeps it.

        Raises:
            SessionStateError: The session is not open.
        """
        if not self.initialized:
            raise SessionStateError(
                f"session {self.session_id!r} is {self._lifecycle.state.value}; read its messages while it is open"
            )
        context: Any = self.coordinator.get("context")
        messages = await self.coordinator.call_bounded(context.get_messages(), "context.get_messages")
        return cast("list[dict[str, Any]]", messages)

    def running_call(self) -> RunningCall:
        """What the session is doing, for reports about sessions that hang."""
        return RunningCall(coordinator=self.coordinator, label=self._lifecycle.activity)

    # ── opening ──

    async def __aenter__(self) -> Self:
        protect_kernel()
        self._lifecycle.require_opening()
        await self._open_or_close(anyio.create_task_group())
        return self

    async def initialize(self) -> None:
        """Open the session by hand; `cleanup` must follow. Prefer ``async with``.

        Modules that need background work or a task of their own cannot be mounted this way. A second call while the first is
        under way waits for it.

        Raises:
            SessionStateError: It is being closed, or the other call that was opening it failed.
        """
        protect_kernel()
        state = self._lifecycle.state
        if state is State.OPEN:
            return
        if state is State.OPENING:
            await self._until_settled()
            if not self.initialized:
                raise SessionStateError(f"session {self.session_id!r} could not be opened by the call that was at it")
            return
        self._lifecycle.require_opening()
        await self._open_or_close(None)

    async def _open_or_close(self, group: TaskGroup | None) -> None:
        """Open the session; if that fails or is interrupted, close what there is of it before that is raised."""
        try:
            self._lifecycle.state = State.OPENING
            if group is not None:
                self._opened_in = current_raw_task()
                await group.__aenter__()
                self.coordinator.hosting.group = group
            await self._open()
            return
        except KeyboardInterrupt as exc:
            before = interrupts.hold()
            problem: BaseException = exc
        except BaseException as exc:  # noqa: BLE001 — raised again below
            before, problem = None, exc
        try:
            while True:
                try:
                    stopped = is_cancellation_type(problem) or isinstance(problem, ExecutionCancelled)
                    self.status.status = "cancelled" if stopped else "failed"
                    await self._close_and_leave(problem, was_open=False)
                    break
                except KeyboardInterrupt as interrupt:  # not closed, `cleanup` would wait for this opening
                    before = before or interrupts.hold()
                    problem = interrupt
            raise problem
        finally:
            release(before)
            del problem  # an exception that names its own frame is a reference cycle

    async def _open(self) -> None:
        parent = self._parent
        tokens = [session.coordinator.cancellation for session in (self, parent) if session is not None]
        # Now: the section begins a turn of the event loop later.
        was_stopped = any(token.is_immediate for token in tokens)
        name, watch_calls = f"amplifier open {self.session_id}", self.coordinator.watch_calls
        try:
            await run_section(self._mount_plan, was_stopped, name=name, isolate=True, on_wait=watch_calls)
        finally:  # also for the cleanups of an opening that has failed
            watch_calls()
        self._lifecycle.state = State.OPEN
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
        return parse_plan(
            self.config, base_deadlines=None if self._parent is None else self._parent.coordinator.deadlines
        )

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
                "message": failure_text(last.error),
                "module_id": last.module_id,
                "failed_modules": [failure.module_id for failure in failures],
            }

    def _lineage(self, *, raw: bool) -> dict[str, Any]:
        details: dict[str, Any] = {"parent": self.parent_id, "session_id": self.session_id}
        metadata = (self.config.get("session") or {}).get("metadata")
        if metadata:
            details["metadata"] = metadata
        if raw:
            details["raw"] = redact_secrets(replace_things(self.config))
        return details

    # ── turns ──

    @overload
    async def execute(self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT) -> str: ...
    @overload
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> T: ...
    @overload
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> Any: ...
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> Any:
        """Run one turn.

        Args:
            prompt: The text of the user, or a list of texts and of text, image and document blocks; see `amplifier.file`.
            timeout: Seconds for the whole turn; None for no limit; left out, the plan's ``turn`` deadline.
            result_type: The type of the answer: an attrs class, a dataclass, a TypedDict, a Literal, a union, a pydantic model, or
                a JSON Schema as a dict; left out, the answer is text.

        Returns:
            The orchestrator's final text, or a value of ``result_type``.

        Raises:
            SessionBusyError: Another turn is running.
            SessionStateError: The session is not open, or belongs to another event loop.
            ExecutionCancelled: The session's token asked for an immediate stop.
            ExecutionTimeout: The timeout passed.
            ExecutionDenied: A hook denied the prompt or a model call.
            ResultError: The answer does not fit ``result_type``, also after the model was shown the problems.
            TypeError: The prompt is neither text nor a list of texts and blocks, or ``result_type`` has no JSON Schema.
            ValueError: A block of the prompt is wrong.
            InvalidRequestError: The provider cannot read a block of the prompt.
            MissingExtraError: Typed answers take packages that are not installed.
            ContractError: The orchestrator returned something else than text.
        """
        answer_format = _answer_format(result_type)
        return await self._run_turn(read_prompt(prompt), timeout, answer_format)

    @overload
    async def resume_turn(self, *, timeout: float | Inherited | None = DEFAULT) -> str: ...
    @overload
    async def resume_turn(self, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]) -> T: ...
    @overload
    async def resume_turn(self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any) -> Any: ...
    async def resume_turn(self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None) -> Any:
        """Go on with the latest turn of the conversation, which was cut off before the model gave an answer.

        Tool calls that have results keep them. A tool call that was cut off runs again if its tool declares ``repeatable = True``,
        never if it declares False; otherwise the user is asked. What does not run again gets a result that reports it.

        Args:
            timeout: As for `execute`.
            result_type: As for `execute`. The conversation does not tell which type the turn began with: give it again.

        Returns:
            The orchestrator's final text, or a value of ``result_type``.

        Raises:
            NoUnfinishedTurnError: The conversation is empty or ends with an answer.
            SessionStateError: The orchestrator cannot resume turns, or the session is not open.
            SessionBusyError: Another turn is running.
            ExecutionCancelled: As for `execute`; so are the others.
        """
        answer_format = _answer_format(result_type)
        return await self._run_turn(None, timeout, answer_format)

    def _turn_seconds(self, timeout: float | Inherited | None) -> float | None:
        return self.coordinator.deadlines.turn if timeout is DEFAULT else check_timeout(timeout)

    async def _run_turn(
        self,
        prompt: str | list[dict[str, Any]] | None,
        timeout: float | Inherited | None,
        answer_format: AnswerFormat[Any] | None,
        stream: TurnStream[Any] | None = None,
    ) -> Any:
        """Claim the session for a turn, unless a stream holds it already, run it and give the session back."""
        inside = None
        seconds = self._turn_seconds(timeout)
        if stream is None:
            await self._require_turn()
        try:
            self._lifecycle.turn_running = True
            if stream is not None:
                stream.holds_session = False
            self._turns.withdraw = None
            inside = inside_turn_of.set((*inside_turn_of.get(), self._lifecycle))
            self._require_own_loop()
            return await run_section(
                self._turns.run,
                prompt,
                seconds,
                answer_format,
                name=f"amplifier turn {self.session_id}",
                isolate=True,
                is_unwinding=self._turns.is_unwinding,
                on_held=self.coordinator.note_cancelled_turn,
            )
        finally:
            self._lifecycle.turn_running = False
            self._turns.end_turn()
            if inside is not None:
                inside_turn_of.reset(inside)

    async def _require_turn(self) -> None:
        """Refuse a turn beside another one; only the end of a text that no one reads any more is waited for."""
        hosted = self._hosted
        if hosted is not None and not hosted.is_over:
            if not hosted.is_left:
                raise SessionBusyError(
                    f"session {self.session_id!r} is busy with a turn whose text is not read to its end; read on, or stop it: leave "
                    "`async with session.stream_text(...) as pieces:`, or `await pieces.aclose()`",
                    session_id=self.session_id,
                )
            with anyio.move_on_after(self.coordinator.deadlines.cleanup):
                await hosted.wait_over()
        self._lifecycle.require_turn()

    def _require_own_loop(self) -> None:
        if self._loop is None or not self._loop.is_running_here():
            raise SessionStateError(f"session {self.session_id!r} was opened on another event loop; use it there")

    @overload
    def stream(self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT) -> TurnStream[str]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> TurnStream[T]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> TurnStream[Any]: ...
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> TurnStream[Any]:
        """Run one turn and watch it: ``async with session.stream(prompt) as events: async for event in events``.

        The session belongs to the turn from entering the block on: another turn is refused. Leaving the block early cancels the
        turn. What `execute` would raise is raised from the iteration. With a ``result_type`` there are events with the part of
        the answer that has arrived.
        """
        return self._stream(partial(read_prompt, prompt), timeout, _answer_format(result_type))

    def stream_text(self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT) -> TextStream:
        """Run one turn and read its text as it comes: ``async for piece in session.stream_text(prompt)``.

        The texts of different model calls are separated by a blank line. An answer that is not streamed comes as one piece. No
        text comes twice, also when the stream of an answer was cut and the call repeated; if the repeated answer is another one,
        a line in brackets says that it begins again. What `execute` raises is raised from the iteration. `TextStream` tells how
        the turn ends when the loop is left early. The session must have been opened with ``async with``.
        """

        def spawn(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async def hosted() -> None:
                try:
                    await run()
                finally:
                    self._hosted = None

            self.coordinator.hosting.spawn(hosted)
            self._hosted = events

        events: TurnStream[str] = self._stream(partial(read_prompt, prompt), timeout, None)
        return TextStream(events, spawn)

    @overload
    def stream_resumed_turn(self, *, timeout: float | Inherited | None = DEFAULT) -> TurnStream[str]: ...
    @overload
    def stream_resumed_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> TurnStream[T]: ...
    @overload
    def stream_resumed_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> TurnStream[Any]: ...
    def stream_resumed_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> TurnStream[Any]:
        """Go on with the turn that was cut off and watch it; to `resume_turn` what `stream` is to `execute`."""
        return self._stream(lambda: None, timeout, _answer_format(result_type))

    def _stream(
        self,
        check_prompt: Callable[[], str | list[dict[str, Any]] | None],
        timeout: float | Inherited | None,
        answer_format: AnswerFormat[Any] | None,
    ) -> TurnStream[Any]:
        async def claim(stream: TurnStream[Any]) -> Callable[[], Awaitable[Any]]:
            run = partial(self._run_turn, check_prompt(), timeout, answer_format, stream)
            self._turn_seconds(timeout)  # refuses a wrong one
            if self.initialized:
                self._require_own_loop()
            await self._require_turn()
            self._turns.withdraw = stream.withdraw
            self._lifecycle.turn_running = stream.holds_session = True
            return run

        return TurnStream(claim, self._turns, self.coordinator.hooks, answer_format=answer_format)

    def steer(self, message: str) -> None:
        """Give the running turn a message of the user: the model reads it with its next request, and the turn goes on until it has.

        The loop emits ``orchestrator:steering_injected`` when the message has become part of the conversation.

        Raises:
            SessionStateError: No turn is running that would read it, or the loop takes none.
            ValueError: The message is no text, or empty.
        """
        steer = self.coordinator.get_capability("session.steer")
        if not self._lifecycle.turn_running:
            raise SessionStateError("no turn is running that would read the message; begin one with execute(prompt)")
        if not callable(steer):
            loop = type(self.coordinator.get("orchestrator")).__name__
            raise SessionStateError(
                f"orchestrator {loop} takes no messages while a turn runs: it offers no capability 'session.steer'"
            )
        steer(message)

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

    def fork(
        self, overlay: dict[str, Any] | None = None, *, session_id: str | None = None, inherit: bool = True
    ) -> AmplifierSession:
        """A child session with this one's plan under ``overlay``, not opened yet.

        Once opened, the child is stopped with its parent, also when the parent closes, and inherits the parent's deadlines; after
        that it cannot be opened. What it uses counts in the parent's budget; with a ``session.budget`` in ``overlay`` it has one
        of its own in addition. Without ``inherit`` the overlay is its whole plan, and all else remains as stated.

        Raises:
            PlanError: The merged plan is wrong.
        """
        own = isinstance(self.loader, ModuleLoader)
        base = self.config if inherit else {"session": {}}
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
            child.coordinator.mounts.mount("module-source-resolver", resolver, None, None)
        child._parent = self
        return child

    @staticmethod
    def _merge_configs(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
        """Deep merge of two plans, the overlay winning; the older name of `amplifier.plan.merge_plans`."""
        return merge_plans(base, overlay)

    # ── closing ──

    # Whatever is interrupted at a line of the kernel is called again and goes on where it was; the interrupt is raised at the end.

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> (
        bool | None
    ):  # with a plain bool type checkers assume that `return await session.execute(…)` may not be reached
        interrupt: BaseException | None = None
        before = None
        crashed = False
        try:
            while True:
                try:
                    self._refuse_from_inside()
                    crashed = await self._close_and_leave(exc, was_open=True)
                    break
                except KeyboardInterrupt as caught:
                    before = before or interrupts.hold()
                    interrupt = interrupt or caught
            if interrupt is not None:
                raise interrupt
            return crashed
        finally:
            release(before)
            interrupt = exc = None  # an exception that names its own frame is a reference cycle

    async def _close_and_leave(self, exc: BaseException | None, *, was_open: bool) -> bool:
        """Close the session and leave its task group, whatever is raised meanwhile; that is raised afterwards."""
        problem: BaseException | None = None
        try:
            try:
                await self._close(was_open)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 — raised below
                problem = error
            while (
                self._lifecycle.state is State.CLOSING
            ):  # another task is at it, and we were cancelled while we waited
                await run_section(self._until_settled, name=f"amplifier close {self.session_id}", shield=True)
            crashed = await self._leave_group(exc)
            if problem is not None:
                raise problem
            return crashed
        finally:
            problem = exc = None  # an exception that names its own frame is a reference cycle

    async def cleanup(self) -> None:
        """Close the session: ``session:end``, then all cleanups in reverse, then the loader's paths.

        Shielded from cancellation; every step has a deadline. Calling it again, also at the same time, is fine.

        Raises:
            SessionStateError: Called from inside one of the session's own turns or structured modules, which would wait for
                itself.
            BaseException: The first Ctrl-C that hit a cleanup, after all have run.
        """
        self._refuse_from_inside()
        interrupt: BaseException | None = None
        before = None
        try:
            while True:
                try:
                    await self._close(was_open=True)
                    break
                except KeyboardInterrupt as exc:
                    before = before or interrupts.hold()
                    interrupt = interrupt or exc
            if interrupt is not None:
                raise interrupt
        finally:
            release(before)
            interrupt = None  # an exception that names its own frame is a reference cycle

    def _refuse_from_inside(self) -> None:
        inside = "turn" if self._lifecycle.turn_running and self._lifecycle in inside_turn_of.get() else None
        if self.coordinator.hosting in hosted_by.get():
            inside = "structured module"
        if inside is not None:
            raise SessionStateError(
                f"session {self.session_id!r} cannot be closed from inside its own {inside}; "
                "stop it with coordinator.request_cancel() and close it where it was opened"
            )

    async def _close(self, was_open: bool) -> None:
        """Close, go on with a closing that was interrupted, or wait until another call has closed."""
        while (
            was_open and self._lifecycle.state is State.OPENING
        ):  # when we wake, it may be opened a second time already
            await self._until_settled()
        if self._lifecycle.state in (State.NEW, State.CLOSED):
            await self.coordinator.cleanup()
            return
        if self._lifecycle.state is State.OPEN and self._loop is not None and not self._loop.has_ended():
            self._require_own_loop()  # if it has ended, there is no other place left to close it
        # In the caller's own step, before the section gets its task: a second caller must see it at once.
        self._lifecycle.state = State.CLOSING
        closing = self._closing = self._closing or _Closing(self, was_open)
        if closing.is_running:
            await self._until_settled()
            return
        try:
            closing.is_running = True
            if closing.may_wait():
                await run_section(closing.run, name=f"amplifier close {self.session_id}", shield=True, isolate=True)
            else:
                await closing.run()
            if closing.interrupt is not None:
                raise closing.interrupt
        finally:
            closing.is_running = False
            del closing  # it has the interrupt

    async def _leave_group(self, exc: BaseException | None) -> bool:
        """Leave the session's task group, which only the task that entered it can."""
        hosting, opened_in = self.coordinator.hosting, self._opened_in
        if hosting.group is not None and opened_in is not current_raw_task():
            hosting.group = self._opened_in = None
            raise SessionStateError(
                f"session {self.session_id!r} was opened in task {task_name(opened_in)!r} and left in task "
                f"{task_name(current_raw_task())!r}; it has been closed, but `async with` must be left in the task that entered "
                "it: keep both in one function, or open it with initialize() and close it with cleanup()"
            ) from exc
        try:
            return await hosting.leave_group(exc, self.session_id)
        finally:
            if hosting.group is None:
                self._opened_in = None  # it leads to this task and to what it raises


class _Closing:
    """One closing: the running turn, ``session:end``, every cleanup in reverse, and reports of those that failed.

    Runs inside a shielded section. Interrupted at a line of the kernel, it goes on where it was when it is run again: a step is dropped
    when it is done, and each can be begun again. One clock, ``deadlines.teardown``, is shared by everything that happens here, observers
    included.

    Attributes:
        is_running: Whether a call is at it.
        interrupt: The first Ctrl-C out of foreign code, to be raised at the end.
    """

    def __init__(self, session: AmplifierSession, was_open: bool) -> None:
        self._session = session
        self._coordinator = session.coordinator
        self._has_opened = was_open
        self._owes_end = was_open
        self._failures = session.cleanup_failures = []
        self._reported = 0
        session.coordinator.cleanups.ran.clear()
        self._budget = session.coordinator.begin_closing()
        self._steps = [self._end_turn, self._unwind, self._announce_failures, self._unwind, self._let_go]
        if was_open:
            self._steps[1:1] = [self._announce_requests, self._announce_end]
        self.interrupt: BaseException | None = None
        self.is_running: bool = False

    def running_call(self) -> RunningCall:
        """Whose closing this is."""
        return RunningCall(coordinator=self._coordinator, label="closing")

    def may_wait(self) -> bool:
        """Whether a step calls code that is not the kernel's; otherwise the closing is over before anything could disturb it."""
        session, coordinator = self._session, self._coordinator
        return bool(
            coordinator.cleanups
            or session._lifecycle.turn_running
            or coordinator.cancellation.has_requests
            or coordinator.hooks.has_handlers(SESSION_END)
            or self._failures
        )

    async def run(self) -> None:
        """End everything, whatever fails on the way."""
        while self._steps:
            try:
                await self._steps[0]()
            except Exception:
                logger.exception("session %r failed to close in one of its steps", self._coordinator.session_id)
            del self._steps[0]
        # Whatever its steps did: who waits for the closing waits for this.
        self._session._lifecycle.state = State.CLOSED
        self._session._closing = None
        self._session._settle()

    async def _end_turn(self) -> None:
        if self._session._lifecycle.turn_running:
            seconds = self._budget.half(math.inf)
            began, failure = time.monotonic(), None
            if not await self._session._turns.end_running_turn(seconds):
                logger.error(
                    "a turn of session %r does not end although it was cancelled; the session is closed without waiting for it",
                    self._coordinator.session_id,
                )
                failure = CleanupFailure("turn", None, DeadlinePassed(seconds), True)
                self._failures.append(failure)
            self._coordinator.cleanups.ran.append(("turn", None, time.monotonic() - began, failure))
        self._coordinator.cancellation.stop_children("the session it was forked from was closed")

    async def _announce_requests(self) -> None:
        """Of a stop that met no turn."""
        if self._session.status.status == "running":
            self._session.status.status = "completed"
        await self._announce(self._session._turns.announce_requests)

    async def _announce_end(self) -> None:
        if self._owes_end and self._coordinator.hooks.has_handlers(SESSION_END):
            self._owes_end = False  # once, also if it is interrupted
            details = {"session_id": self._coordinator.session_id, "status": self._session.status.status}
            await self._announce(self._coordinator.hooks.emit, SESSION_END, details)

    async def _unwind(self) -> None:
        """Run all cleanups; the second time those that observers have registered meanwhile."""
        if self._coordinator.cleanups:
            await self._coordinator.unwind(self._failures, self._budget)

    async def _announce_failures(self) -> None:
        self._coordinator.refuse_work()
        while self._reported < len(self._failures):
            failure = self._failures[self._reported]
            self._reported += 1
            details: dict[str, Any] = {
                "module_id": failure.module,
                "cleanup": failure.what,
                "error": failure_text(failure.error),
                "error_type": type(failure.error).__name__,
                "abandoned": failure.overran,
            }
            if isinstance(failure.error, DeadlinePassed):
                details["seconds"] = failure.error.seconds
            await self._announce(self._coordinator.hooks.emit, CLEANUP_FAILED, details)

    async def _announce(self, announce: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Inform the hooks; a Ctrl-C that hits one is kept, for the rest must run."""
        try:
            await announce(*args)
        except Exception:
            what = args[0] if args else "a request to stop"
            logger.exception("session %r could not announce %s", self._coordinator.session_id, what)
        except BaseException as exc:  # noqa: BLE001 — raised when everything has been closed
            self.interrupt = self.interrupt or exc

    async def _let_go(self) -> None:
        """Let go of everything that reaches beyond the session."""
        session, coordinator = self._session, self._coordinator
        interrupts = (failure.error for failure in self._failures if not isinstance(failure.error, Exception))
        self.interrupt = self.interrupt or next(interrupts, None)
        coordinator.end_closing()
        if session._parent is not None:
            session._parent.coordinator.cancellation.unregister_child(coordinator.cancellation)
        session.status.ended_at = datetime.now(UTC)
        release_loader(coordinator)
        if self._has_opened:
            forget_frames([failure.error for failure in session.failures])
            forget_frames([failure.error for failure in self._failures])


def _answer_format(result_type: Any) -> AnswerFormat[Any] | None:
    """The format of an answer of this type; None for text, which every answer is."""
    if result_type is None or result_type is str:
        return None
    from amplifier.answers import answer_format  # noqa: PLC0415 — only typed answers need it

    return answer_format(result_type)
