"""The session: open it, mount the plan, run turns, fork children, close it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import anyio
import attrs

from amplifier._internal.json import redact_secrets
from amplifier._internal.reading import check_timeout
from amplifier.contracts import (
    DEFAULT,
    ApprovalSystem,
    ContextManager,
    DisplaySystem,
    Inherited,
)
from amplifier.contracts.cancellation import cancel_scope, is_cancellation_type
from amplifier.errors import ExecutionCancelled, SessionBusyError, SessionStateError
from amplifier.events import SESSION_FORK
from amplifier.loading import ModuleLoader
from amplifier.models import Prompt, SessionStatus
from amplifier.models.prompts import read_prompt
from amplifier.models.turns import StopReport, TurnReport
from amplifier.plan import (
    BudgetLimits,
    MountPlan,
    PlanDict,
    merge_plans,
    new_session_id,
    parse_plan,
    validate_session_id,
)
from amplifier.plan.dicts import replace_things

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.cancellation import CancellationToken
from ..runtime.child import enable_ki_protection, ki_protected, run_in_child
from ..runtime.cleanup import CleanupFailure
from ..runtime.deadlines import failure_text
from ..runtime.frames import WaitInfo
from ..runtime.loop import Loop, current_raw_task, task_name
from ..runtime.task_host import hosted_by
from .closing import Closing
from .lifecycle import Lifecycle, State, inside_closing_of, inside_turns
from .opening import Loader, ModuleFailure, Opening, PlanOnce
from .stream import TextStream, TurnStream
from .turn import Turn, current_meter

if TYPE_CHECKING:  # only types, typed answers and budgets need these
    from anyio.abc import TaskGroup

    from amplifier.budget import Budget
    from amplifier.models.answers import AnswerFormat

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("amplifier.session")


@attrs.frozen
class SessionStatistics:
    """Numbers of a session at one moment.

    Attributes:
        state: "new", "opening", "open", "closing" or "closed".
        turn_running: True while a turn is running.
        cleanups: The number of registered cleanups.
        handlers: The number of registered hook handlers.
        failures: The number of modules that could not be used.
    """

    state: str
    turn_running: bool
    cleanups: int
    handlers: int
    failures: int


class AmplifierSession:
    """An agent: its modules, its turns and its lifetime.

    ``async with AmplifierSession(plan) as session`` opens it. After the block, even on an error,
    nothing of the session remains (L1).

    Args:
        config: The mount plan. `amplifier.plan.PlanDict` describes it to type checkers.
        loader: Finds modules. Without one, the session creates a `ModuleLoader`.
        session_id: The id of the session. Generated if absent.
        parent_id: The id of the session that this one was forked from, or None.
        approval_system: Answers hooks that prompt the user. Without one, their requests are denied.
        display_system: Shows messages of hooks.
        is_resumed: Announce ``session:resume`` instead of ``session:start``.

    Attributes:
        coordinator: The session as its modules see it, with ``hooks`` and ``cancellation``.
        status: The state of the session and of its latest turn.
        failures: Modules of the plan that could not be used.
        cleanup_failures: Steps of the closing that failed or ran out of time.

    Raises:
        PlanError: The plan or an id is wrong. It lists all problems.
    """

    def __init__(
        self,
        config: dict[str, Any] | PlanDict,
        loader: Loader | None = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        approval_system: ApprovalSystem | None = None,
        display_system: DisplaySystem | None = None,
        is_resumed: bool = False,
    ) -> None:
        plan = parse_plan(config)
        self._plan_once: PlanOnce | None = PlanOnce(config, plan)
        self.config: dict[str, Any] = cast("dict[str, Any]", config)
        self.session_id: str = (
            new_session_id() if session_id is None else validate_session_id(session_id)
        )
        self.parent_id: str | None = None if parent_id is None else validate_session_id(parent_id)
        self.is_resumed: bool = is_resumed
        self.status: SessionStatus = SessionStatus(session_id=self.session_id)
        self.failures: list[ModuleFailure] = []
        self.cleanup_failures: list[CleanupFailure] = []
        self.coordinator: ModuleCoordinator = ModuleCoordinator(
            self, approval_system, display_system
        )
        self.coordinator.deadlines = plan.deadlines
        self.loader: Any = ModuleLoader(self.coordinator) if loader is None else loader
        self.coordinator.loader = self.loader
        self._lifecycle = Lifecycle(self.session_id, is_resumed)
        self._parent: AmplifierSession | None = None
        self._loop: Loop | None = None
        self._opened_in: object = None
        # The turn of the latest text stream while this turn is running, or None.
        self._text_turn: TurnStream[str] | None = None

    def __repr__(self) -> str:
        turn = "" if self._lifecycle.turn is None else ", turn running"
        return f"<AmplifierSession {self.session_id!r} {self._lifecycle.state.value}{turn}>"

    # Default arguments keep what the method needs: when the interpreter exits, the globals of the
    # module disappear before the last session does.
    def __del__(
        self,
        idle: tuple[State, ...] = (State.NEW, State.CLOSED),
        warn: Callable[..., None] = warnings.warn,
    ) -> None:
        # None if the plan was refused.
        lifecycle: Lifecycle | None = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.state not in idle:
            warn(
                f"session {lifecycle.session_id!r} was dropped while it was open, so its cleanups "
                "never ran; open it with `async with`, or call cleanup() after initialize()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def statistics(self) -> SessionStatistics:
        """Return the session's current state in numbers."""
        return SessionStatistics(
            state=self._lifecycle.state.value,
            turn_running=self._lifecycle.turn is not None,
            cleanups=len(self.coordinator.cleanups),
            handlers=self.coordinator.hooks.statistics().handlers,
            failures=len(self.failures),
        )

    @property
    def initialized(self) -> bool:
        """True while the session is open."""
        return self._lifecycle.state is State.OPEN

    @property
    def budget(self) -> Budget | None:
        """The limits of the session and its use so far.

        None before the session is opened, and if neither this session nor a parent has a
        ``session.budget``.
        """
        meter = self._lifecycle.meter
        return None if meter is None else meter.budget

    @property
    def last_turn(self) -> TurnReport | None:
        """The report of the latest turn, including a failed one.

        A call that a busy session refuses isn't a turn, nor is a call with wrong arguments.
        """
        latest = self._lifecycle.last_turn
        return None if latest is None else latest.report()

    @property
    def last_stop(self) -> StopReport | None:
        """The report of the latest stop: that of the closing, or else that of the latest turn.

        It lists the parts that were stopped, the time each took, and any that didn't stop. None if
        nothing was stopped.
        """
        coordinator, lifecycle = self.coordinator, self._lifecycle
        closing = coordinator.cleanups.ran if lifecycle.state is State.CLOSED else None
        return StopReport.of(lifecycle.last_turn, closing, coordinator.hosting.late)

    async def messages(self) -> list[dict[str, Any]]:
        """Return the whole conversation as the context module holds it.

        Raises:
            SessionStateError: The session isn't open.
        """
        if not self.initialized:
            state = self._lifecycle.state.value
            raise SessionStateError(
                f"session {self.session_id!r} is {state}; read its messages while it is open"
            )
        context = cast("ContextManager", self.coordinator.get("context"))
        messages = await self.coordinator.call_bounded(
            context.get_messages(), "context.get_messages"
        )
        return cast("list[dict[str, Any]]", messages)

    def wait_info(self) -> WaitInfo:
        """Describe the session for reports about sessions that hang."""
        return WaitInfo(coordinator=self.coordinator, label=self._lifecycle.activity)

    # ── opening ──

    async def __aenter__(self) -> Self:
        self._lifecycle.require_opening()
        await self._open_or_close(anyio.create_task_group())
        return self

    async def initialize(self) -> None:
        """Open the session by hand. `cleanup` must follow. Prefer ``async with``.

        Modules that need background work or their own task can't be mounted this way. A second call
        waits for the first if that is still running.

        Raises:
            SessionStateError: The session is being closed, or another call failed to open it.
        """
        state = self._lifecycle.state
        if state is State.OPEN:
            return
        if state is State.OPENING:
            await self._lifecycle.wait_settled()
            if not self.initialized:
                problem = "could not be opened by another call that was opening it"
                raise SessionStateError(f"session {self.session_id!r} {problem}")
            return
        self._lifecycle.require_opening()
        await self._open_or_close(None)

    async def _open_or_close(self, group: TaskGroup | None) -> None:
        """Open the session. If that fails, close the part of it that was opened."""
        enable_ki_protection()
        try:
            self._lifecycle.state = State.OPENING
            if group is not None:
                self._opened_in = current_raw_task()
                await group.__aenter__()
                self.coordinator.hosting.group = group
            await self._open()
        except BaseException as exc:
            stopped = is_cancellation_type(exc) or isinstance(exc, ExecutionCancelled)
            self.status.status = "cancelled" if stopped else "failed"
            await self._close_and_leave(exc, was_open=False)
            raise

    async def _open(self) -> None:
        tokens = [self.coordinator.cancellation]
        if self._parent is not None:
            tokens.append(self._parent.coordinator.cancellation)
        # Read the tokens here, because the child task starts one round of the event loop later.
        was_stopped = any(token.is_immediate for token in tokens)
        name = f"amplifier open {self.session_id}"
        await run_in_child(self._mount_plan, was_stopped, name=name)
        self._lifecycle.settle(State.OPEN)

    async def _mount_plan(self, was_stopped: bool) -> None:
        parent = self._parent
        if parent is not None and parent._lifecycle.state in (State.CLOSING, State.CLOSED):
            raise SessionStateError(
                f"session {self.session_id!r} cannot be opened: session {self.parent_id!r}, from "
                f"which it was forked, is {parent._lifecycle.state.value}; open and close a child "
                "within its parent"
            )
        plan = self._read_plan()
        self._loop = Loop()
        self.failures = []
        self.cleanup_failures = []
        self.status.status = "running"
        self.status.ended_at = None
        self._open_budget(plan)
        self.coordinator.open(plan, self._loop, self._announce_requests_soon)
        token = self.coordinator.cancellation
        if parent is not None:
            parent.coordinator.cancellation.register_child(token)
        for warning in plan.warnings:
            logger.warning("mount plan of session %r: %s", self.session_id, warning)
        await self._mount_until_stopped(plan, None if was_stopped else token)

    async def _mount_until_stopped(self, plan: MountPlan, token: CancellationToken | None) -> None:
        """Mount everything, unless this session or its parent is asked to stop.

        With a token that was set earlier the session opens, but refuses turns until the token is
        reset.
        """
        opening = Opening(plan, self.coordinator, self.coordinator.loader)
        try:
            with cancel_scope() as scope:
                if token is not None:
                    token.bind(scope)
                await opening.run()
                if self.parent_id:
                    await self.coordinator.hooks.emit(SESSION_FORK, self._lineage(plan.raw))
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
        """Read the plan again if the application may have changed its dict."""
        read, self._plan_once = self._plan_once, None
        if self._parent is not None:
            return parse_plan(self.config, base_deadlines=self._parent.coordinator.deadlines)
        plan = None if read is None else read.plan_for(self.config)
        return parse_plan(self.config) if plan is None else plan

    def _open_budget(self, plan: MountPlan) -> None:
        """Meter the session's calls if its plan, its parent or the enclosing turn has a budget."""
        lifecycle, above = self._lifecycle, None
        if self._parent is not None:
            above = self._parent._lifecycle.meter
        above = above or current_meter.get()
        if lifecycle.meter is None and above is None and plan.budget is None:
            return
        from amplifier.budget import Budget, SessionMeter  # noqa: PLC0415 — only with a budget

        limits = plan.budget or BudgetLimits()
        if lifecycle.meter is not None:
            # The session is being reopened, so its earlier use still counts.
            lifecycle.meter.budget.use_limits(limits)
            return
        coordinator, parent = self.coordinator, None if above is None else above.budget
        budget = Budget(limits, session_id=self.session_id, hooks=coordinator.hooks, parent=parent)
        meter = lifecycle.meter = SessionMeter(budget)
        meter.watch(coordinator)
        coordinator.mounts.meter = meter.meter

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

    def _lineage(self, is_raw: bool) -> dict[str, Any]:
        """Return the payload of ``session:fork``."""
        details: dict[str, Any] = {"parent": self.parent_id, "session_id": self.session_id}
        metadata = (self.config.get("session") or {}).get("metadata")
        if metadata:
            details["metadata"] = metadata
        if is_raw:
            details["raw"] = redact_secrets(replace_things(self.config))
        return details

    # ── turns ──

    @overload
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT
    ) -> str: ...
    @overload
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> T: ...
    @overload
    async def execute(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> Any: ...
    async def execute(
        self,
        prompt: Prompt,
        *,
        timeout: float | Inherited | None = DEFAULT,
        result_type: Any = None,
    ) -> Any:
        """Run one turn.

        Args:
            prompt: The text of the user, or a list of strings and of text, image and document
                blocks. See `amplifier.file`.
            timeout: Seconds for the whole turn, or None for no limit. The default is the plan's
                ``turn`` deadline.
            result_type: The type of the answer: an attrs class, a dataclass, a TypedDict, a
                Literal, a union, a pydantic model, or a JSON Schema as a dict. Without it, the
                answer is text.

        Returns:
            The orchestrator's final text, or a value of ``result_type``.

        Raises:
            SessionBusyError: Another turn is running.
            SessionStateError: The session isn't open, or belongs to another event loop.
            ExecutionCancelled: The session's token asked for an immediate stop.
            ExecutionTimeout: The timeout passed.
            ExecutionDenied: A hook denied the prompt or a model call.
            ResultError: The answer doesn't fit ``result_type``, even after the model was shown the
                problems.
            TypeError: The prompt is neither text nor a list of texts and blocks, or
                ``result_type`` has no JSON Schema.
            ValueError: A block of the prompt is wrong.
            InvalidRequestError: The provider can't read a block of the prompt.
            MissingExtraError: Typed answers need packages that aren't installed.
            ContractError: The orchestrator returned something other than text.
        """
        answer_format = _answer_format(result_type)
        return await self._run_turn(read_prompt(prompt), timeout, answer_format)

    @overload
    async def resume_turn(self, *, timeout: float | Inherited | None = DEFAULT) -> str: ...
    @overload
    async def resume_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> T: ...
    @overload
    async def resume_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> Any: ...
    async def resume_turn(
        self, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> Any:
        """Continue the latest turn, which was interrupted before the model gave an answer.

        Tool calls that have results keep them. An interrupted tool call runs again if its tool
        declares ``repeatable = True``, and never if it declares False. Otherwise the user is
        prompted. A call that isn't repeated gets a result that says so.

        Args:
            timeout: As for `execute`.
            result_type: As for `execute`. The conversation doesn't contain the type that the turn
                started with, so pass it again.

        Returns:
            The orchestrator's final text, or a value of ``result_type``.

        Raises:
            NoUnfinishedTurnError: The conversation is empty or ends with an answer.
            SessionStateError: The orchestrator can't resume turns, or the session isn't open.
            SessionBusyError: Another turn is running.
            ExecutionCancelled: As for `execute`, like the other errors.
        """
        answer_format = _answer_format(result_type)
        return await self._run_turn(None, timeout, answer_format)

    async def _run_turn(
        self,
        prompt: str | list[dict[str, Any]] | None,
        timeout: float | Inherited | None,
        answer_format: AnswerFormat[Any] | None,
        stream: TurnStream[Any] | None = None,
    ) -> Any:
        """Claim the session for a turn, run it, and release the session.

        The turn of a stream runs in the task that the stream started for it.
        """
        seconds = self._turn_seconds(timeout)
        await self._require_turn(stream)
        self._require_own_loop()
        lifecycle = self._lifecycle
        turn = Turn(
            self.coordinator,
            self.status,
            lifecycle.meter,
            lifecycle.start_event,
            prompt,
            seconds,
            answer_format,
        )
        token = inside_turns.set((*inside_turns.get(), turn.mark))
        try:
            lifecycle.turn = turn
            if stream is None:
                return await run_in_child(turn.run, name=f"amplifier turn {self.session_id}")
            stream.begin()
            return await turn.run()
        finally:
            try:
                lifecycle.end_turn(turn)
            finally:
                inside_turns.reset(token)

    def _turn_seconds(self, timeout: float | Inherited | None) -> float | None:
        if timeout is DEFAULT:
            return self.coordinator.deadlines.turn
        return check_timeout(timeout)

    async def _require_turn(self, stream: TurnStream[Any] | None) -> None:
        """Raise if a turn is already running. Wait for an abandoned text stream first."""
        is_in_time = True
        # Meanwhile another waiting caller may have started a text stream.
        while is_in_time and (text_turn := self._text_turn) is not None:
            if text_turn is stream or text_turn.is_over:
                break
            if not text_turn.is_left:
                raise SessionBusyError(
                    f"session {self.session_id!r} is busy with a turn whose text is not read to "
                    "its end; read on, or stop it: leave "
                    "`async with session.stream_text(...) as pieces:`, or `await pieces.aclose()`",
                    session_id=self.session_id,
                )
            with anyio.move_on_after(self.coordinator.deadlines.cleanup) as limit:
                await text_turn.wait_over()
            is_in_time = not limit.cancelled_caught
        self._lifecycle.require_turn()

    def _require_own_loop(self) -> None:
        if self._loop is None or not self._loop.is_running_here():
            raise SessionStateError(
                f"session {self.session_id!r} was opened on another event loop; use it there"
            )

    @overload
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT
    ) -> TurnStream[str]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> TurnStream[T]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> TurnStream[Any]: ...
    def stream(
        self,
        prompt: Prompt,
        *,
        timeout: float | Inherited | None = DEFAULT,
        result_type: Any = None,
    ) -> TurnStream[Any]:
        """Run one turn and read its events.

        Enter the stream with ``async with session.stream(prompt) as events``, and iterate over
        ``events``. The session is busy from the start of the block. Exiting the block early cancels
        the turn. The iteration raises the errors of `execute`. With a ``result_type``, some events
        contain the part of the answer received so far.
        """
        return self._stream(partial(read_prompt, prompt), timeout, _answer_format(result_type))

    def stream_text(
        self, prompt: Prompt, *, timeout: float | Inherited | None = DEFAULT
    ) -> TextStream:
        """Run one turn and read its text: ``async for piece in session.stream_text(prompt)``.

        The texts of different model calls are separated by a blank line. An answer that isn't
        streamed arrives as one piece. When the stream of an answer breaks and the call is repeated,
        a line in brackets reports that the answer starts over, and its text follows from the
        beginning. The iteration raises the errors of `execute`. See `TextStream` for the end of the
        turn when the loop exits early. The session must have been opened with ``async with``.
        """

        def spawn(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async def run_and_forget() -> None:
                try:
                    await run()
                finally:
                    if self._text_turn is events:
                        self._text_turn = None

            self.coordinator.hosting.spawn(run_and_forget, events.task_name)
            self._text_turn = events

        async def start() -> None:
            # Check this before starting a task, since the task belongs to the session's group.
            await self._require_turn(None)
            self._require_own_loop()
            await events.start(spawn)

        events: TurnStream[str] = self._stream(
            partial(read_prompt, prompt), timeout, None, text_only=True
        )
        return TextStream(events, start)

    @overload
    def stream_resumed_turn(
        self, *, timeout: float | Inherited | None = DEFAULT
    ) -> TurnStream[str]: ...
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
        """Continue the interrupted turn as a stream. The streaming form of `resume_turn`."""
        return self._stream(lambda: None, timeout, _answer_format(result_type))

    def _stream(
        self,
        check_prompt: Callable[[], str | list[dict[str, Any]] | None],
        timeout: float | Inherited | None,
        answer_format: AnswerFormat[Any] | None,
        *,
        text_only: bool = False,
    ) -> TurnStream[Any]:
        async def run(stream: TurnStream[Any]) -> Any:
            return await self._run_turn(check_prompt(), timeout, answer_format, stream)

        return TurnStream(run, self.coordinator, answer_format=answer_format, text_only=text_only)

    def steer(self, message: str) -> None:
        """Add a message of the user to the running turn.

        The model receives it with the next request, and the turn doesn't end before that. The loop
        emits ``orchestrator:steering_injected`` when the message is part of the conversation.

        Raises:
            SessionStateError: No running turn would read the message, or the orchestrator accepts
                no messages.
            ValueError: The message isn't text, or is empty.
        """
        steer = self.coordinator.get_capability("session.steer")
        if self._lifecycle.turn is None:
            raise SessionStateError(
                "no turn is running that would read the message; begin one with execute(prompt)"
            )
        if not callable(steer):
            loop = type(self.coordinator.get("orchestrator")).__name__
            reason = "it offers no capability 'session.steer'"
            raise SessionStateError(
                f"orchestrator {loop} takes no messages while a turn runs: {reason}"
            )
        steer(message)

    # ── cancellation ──

    def _announce_requests_soon(self) -> None:
        """Announce a request alongside the running turn. The closing announces requests itself."""
        if self.coordinator.hosting.takes_work:
            self.coordinator.hosting.spawn(self._announce_requests)

    async def _announce_requests(self) -> None:
        # The closing waits for this task, so a callback can't wait for the closing.
        inside_closing_of.set((*inside_closing_of.get(), self._lifecycle))
        with cancel_scope(shield=True):
            await self.coordinator.cancellation.announce_requests(self.coordinator.hooks.emit)

    # ── children ──

    def fork(
        self,
        overlay: dict[str, Any] | None = None,
        *,
        session_id: str | None = None,
        inherit: bool = True,
    ) -> AmplifierSession:
        """Return an unopened child session with this one's plan under ``overlay``.

        Once opened, the child inherits the parent's deadlines, and stops when the parent stops or
        closes. A child can't be opened after its parent has closed. The use of the child counts
        against the parent's budget. With a ``session.budget`` in ``overlay``, the child has its own
        budget as well.

        Args:
            overlay: The changes to this session's plan, merged deeply.
            session_id: Generated if absent.
            inherit: False to use the overlay as the whole plan.

        Raises:
            PlanError: The merged plan is wrong.
        """
        is_own_loader = isinstance(self.loader, ModuleLoader)
        base = self.config if inherit else {"session": {}}
        section = base["session"]
        if self._lifecycle.meter is not None and "budget" in section:
            # The parent's budget applies to the child without a copy in its plan.
            kept = {key: value for key, value in section.items() if key != "budget"}
            base = {**base, "session": kept}
        child = AmplifierSession(
            merge_plans(base, {} if overlay is None else overlay),
            loader=None if is_own_loader else self.loader,
            session_id=session_id,
            parent_id=self.session_id,
            approval_system=self.coordinator.approval_system,
            display_system=self.coordinator.display_system,
        )
        if is_own_loader:
            child.loader = child.coordinator.loader = self.loader.for_child(child.coordinator)
        resolver = self.coordinator.get("module-source-resolver")
        if resolver is not None:
            child.coordinator.mounts.mount("module-source-resolver", resolver, None, None)
        child._parent = self
        return child

    @staticmethod
    def _merge_configs(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
        """Merge two plans. This is an older name for `amplifier.plan.merge_plans`."""
        return merge_plans(base, overlay)

    # ── closing ──

    # If the return type were bool, type checkers would assume that the block may swallow errors,
    # and that a function ending in such a block may return None.
    @ki_protected
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            self._refuse_from_inside()
            return await self._close_and_leave(exc, was_open=True)
        finally:
            # Break the reference cycle with the traceback.
            del exc

    @ki_protected
    async def _close_and_leave(self, exc: BaseException | None, *, was_open: bool) -> bool:
        """Close the session and exit its task group, even if closing raises."""
        try:
            await self._close(was_open)
        except BaseException:
            await self._leave_group(exc)
            raise
        return await self._leave_group(exc)

    @ki_protected
    async def cleanup(self) -> None:
        """Close the session: ``session:end``, then all cleanups in reverse order.

        The closing is shielded from cancellation, and every step has a deadline. `cleanup` may be
        called repeatedly, even while another call is running.

        Raises:
            SessionStateError: The call came from inside one of the session's own turns or
                structured modules, where it would wait for itself.
            KeyboardInterrupt: It hit a cleanup. The others have run.
        """
        self._refuse_from_inside()
        await self._close(was_open=True)

    def _refuse_from_inside(self) -> None:
        lifecycle, place = self._lifecycle, None
        if lifecycle.turn is not None and lifecycle.turn.mark in inside_turns.get():
            place = "turn"
        if self.coordinator.hosting in hosted_by.get():
            place = "structured module"
        if lifecycle in inside_closing_of.get():
            place = "closing"
        if place is not None:
            raise SessionStateError(
                f"session {self.session_id!r} cannot be closed from inside its own {place}; "
                "stop it with coordinator.request_cancel() and close it where it was opened"
            )

    async def _close(self, was_open: bool) -> None:
        """Close the session, or wait until another call has closed it."""
        # If the loop has ended, no opening or closing can continue.
        is_alive = self._loop is None or not self._loop.has_ended()
        # While this call waited, the session may have started to open again.
        while was_open and self._lifecycle.state is State.OPENING and is_alive:
            await self._lifecycle.wait_settled()
        state, name = self._lifecycle.state, f"amplifier close {self.session_id}"
        if state in (State.NEW, State.CLOSED):
            await self.coordinator.cleanup()
            return
        if state is State.CLOSING and is_alive:
            await run_in_child(self._lifecycle.wait_settled, name=name, shield=True)
            return
        # If the session's loop has ended, the session can be closed on any other loop.
        if state is State.OPEN and self._loop is not None and is_alive:
            self._require_own_loop()
        # Set the state before the first await, so that a second caller finds it.
        self._lifecycle.state = State.CLOSING
        parent = None if self._parent is None else self._parent.coordinator.cancellation
        closing = Closing(
            self.coordinator,
            self._lifecycle,
            self.status,
            self.failures,
            parent,
            was_open=was_open,
        )
        self.cleanup_failures = closing.failures
        if closing.calls_foreign_code():
            await run_in_child(closing.close, name=name, shield=True)
        else:
            await closing.close()

    async def _leave_group(self, exc: BaseException | None) -> bool:
        """Exit the session's task group. Only the task that entered the group can do this."""
        hosting, opened_in, here = self.coordinator.hosting, self._opened_in, current_raw_task()
        self._opened_in = None
        if hosting.group is not None and opened_in is not here:
            hosting.group = None
            raise SessionStateError(
                f"session {self.session_id!r} was opened in task {task_name(opened_in)!r} and "
                f"left in task {task_name(here)!r}; it has been closed, but `async with` must be "
                "left in the task that entered it: keep both in one function, or open it with "
                "initialize() and close it with cleanup()"
            ) from exc
        return await hosting.leave_group(exc, self.session_id)


def _answer_format(result_type: Any) -> AnswerFormat[Any] | None:
    """Return the format of an answer of this type, or None for text."""
    if result_type is None or result_type is str:
        return None
    from amplifier.models.answers import answer_format  # noqa: PLC0415 — only typed answers need it

    return answer_format(result_type)
