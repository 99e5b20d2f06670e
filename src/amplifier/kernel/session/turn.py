"""One turn: the orchestrator inside its cancel scope, and the events before and after it; and the states of a session.

The session claims itself for the turn and guards it against native cancels; this file calls the orchestrator, binds the
cancellation token to the turn's scope, and distinguishes the ways a turn can end.
"""

from __future__ import annotations

import enum
import inspect
import logging
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier._json import redact_secrets
from amplifier.contracts._cancellation import cancel_scope, contained_failure, is_cancellation_type, loop_clock
from amplifier.errors import (
    BudgetError,
    ContentFilterError,
    ContractError,
    ExecutionCancelled,
    ExecutionDenied,
    ExecutionTimeout,
    ResultError,
    SessionBusyError,
    SessionStateError,
)
from amplifier.events import (
    CANCEL_COMPLETED,
    CANCEL_REQUESTED,
    PROMPT_SUBMIT,
    SESSION_CONFIG,
    SESSION_RESUME,
    SESSION_START,
)
from amplifier.models import SessionStatus
from amplifier.models._prompts import text_of_prompt
from amplifier.turns import RecordedEvent, StopReport, TurnReport

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.backend import RunningCall
from ..runtime.deadlines import failure_text, failure_words
from ..runtime.uninterrupted import interruptible, run_section

if TYPE_CHECKING:  # packages that only typed answers and budgets need
    from amplifier.answers import AnswerFormat
    from amplifier.budget import SessionMeter

metered_turn: ContextVar[SessionMeter | None] = ContextVar("amplifier_metered_turn", default=None)
"""Of the turn with a budget that the running code is part of. A session that is opened there uses the same budget."""

logger: logging.Logger = logging.getLogger("amplifier.session")


# ── the states of a session ────────────────────────────────────────────────────────────────────────


class State(enum.Enum):
    """Where a session is in its life."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_ADVICE = {
    State.NEW: "open it first: `async with session:` or `await session.initialize()`",
    State.OPENING: "wait until `initialize()` or `async with` has finished opening it",
    State.OPEN: "it is already open",
    State.CLOSING: "it is being closed",
    State.CLOSED: "open it again, or make a new session",
}


class Lifecycle:
    """One session's state and whether a turn is running in it.

    new → opening → open → closing → closed; a failed opening goes straight to closing; a session opened by hand may be opened
    again after it was closed (`initialize` after `cleanup`). Whoever changes it asks first and then assigns, inside the ``try`` that
    takes it back: Ctrl-C cannot come between (see `uninterrupted`).
    """

    __slots__ = ("session_id", "state", "turn_running")

    def __init__(self, session_id: str) -> None:
        self.session_id: str = session_id
        self.state: State = State.NEW
        self.turn_running: bool = False

    @property
    def activity(self) -> str | None:
        """What the session is doing, in words; None when it does nothing."""
        if self.state is State.OPENING:
            return "opening"
        if self.state is State.CLOSING:
            return "closing"
        return "a turn" if self.turn_running else None

    def require_opening(self) -> None:
        """Refuse to open what cannot be opened.

        Raises:
            SessionStateError: It is neither new nor closed.
        """
        if self.state not in (State.NEW, State.CLOSED):
            raise SessionStateError(
                f"session {self.session_id!r} cannot go from {self.state.value} to opening; {_ADVICE[self.state]}"
            )

    def require_turn(self) -> None:
        """Refuse a turn that cannot begin (L8).

        Raises:
            SessionStateError: The session is not open.
            SessionBusyError: Another turn holds it.
        """
        if self.state is not State.OPEN:
            raise SessionStateError(
                f"cannot execute: session {self.session_id!r} not initialized (it is {self.state.value}); "
                f"{_ADVICE[self.state]}"
            )
        if self.turn_running:
            raise SessionBusyError(
                f"session {self.session_id!r} is busy with another turn; wait for it, cancel it, "
                "or fork() a session of its own for parallel work",
                session_id=self.session_id,
            )


# ── one turn ───────────────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class RecordedTurn:
    """A turn for ``session.last_turn``: what is kept while it runs, so that it is folded only when someone looks."""

    prompt: Any = None
    began: float = attrs.field(factory=time.monotonic)
    events: list[RecordedEvent] = attrs.field(factory=list)
    text: str | None = None
    value: Any = None
    stop_reason: str | None = None
    error: str | None = None
    ended: float = 0.0
    asked: float | None = None
    _report: TurnReport | None = None

    def note(self, exc: BaseException) -> None:
        """It ended with an exception."""
        self.stop_reason = "error"
        if isinstance(exc, ExecutionTimeout):
            self.stop_reason = "timeout"
            self.asked = None if exc.seconds is None else self.began + exc.seconds
        elif isinstance(exc, BudgetError):
            self.stop_reason = "budget"
        elif isinstance(exc, ContentFilterError):
            self.stop_reason = "refused"
        elif isinstance(exc, ExecutionDenied):
            self.stop_reason = "denied"
            self.prompt = None if exc.event == PROMPT_SUBMIT else self.prompt  # it is not part of the conversation
        elif isinstance(exc, ExecutionCancelled) or is_cancellation_type(exc) or _is_interrupt(exc):
            self.stop_reason = "cancelled"
        is_plain = is_cancellation_type(exc) or _is_interrupt(exc)  # whose text is about scopes and tasks
        self.error = "cancelled" if is_plain else failure_words(exc)

    def report(self) -> TurnReport:
        """What it was."""
        if self._report is None:
            self._report = TurnReport.of(
                self.events,
                prompt=self.prompt,
                text=self.text,
                value=self.value,
                stop_reason=self.stop_reason,
                error=self.error,
                began=self.began,
                ended=self.ended,
            )
            self.events = []
        return self._report


class TurnRunner:
    """Runs the turns of one session, one at a time.

    Attributes:
        meter: Counts the calls of the session; None without a budget.
        latest: The latest turn that has ended.
    """

    __slots__ = (
        "_announcing",
        "_coordinator",
        "_is_closing",
        "_is_resumed",
        "_lifecycle",
        "_over",
        "_running",
        "_scope",
        "_started",
        "_status",
        "latest",
        "meter",
        "withdraw",
    )

    def __init__(
        self, coordinator: ModuleCoordinator, status: SessionStatus, lifecycle: Lifecycle, is_resumed: bool
    ) -> None:
        self._coordinator = coordinator
        self._status = status
        self._lifecycle = lifecycle
        self._is_resumed = is_resumed
        self._started = False
        self._announcing: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._over: anyio.Event | None = None
        self._running: RecordedTurn | None = None
        self._is_closing = False
        self.meter: SessionMeter | None = None
        self.latest: RecordedTurn | None = None
        self.withdraw: Callable[[ExecutionCancelled], None] | None = None
        """Ends a turn that the session is claimed for and whose task has not begun; on asyncio it may never begin."""

    def running_call(self) -> RunningCall:
        """The turn that is running."""
        until = None if self._scope is None else self._scope.deadline
        return RunningCall(coordinator=self._coordinator, label="a turn", until=until)

    def reopen(self) -> None:
        """The session opens, perhaps not for the first time."""
        self._is_closing = False

    def end_turn(self) -> None:
        """The turn has unwound, or never begun: let the next one in, or the closing go on."""
        self._lifecycle.turn_running = False
        self.withdraw = None
        if self._over is not None:
            self._over.set()

    async def end_running_turn(self, seconds: float) -> bool:
        """Cancel a turn that runs in another task and wait for it: nothing may write into a closed session.

        Returns:
            Whether it has ended; False after ``seconds``.
        """
        if self.withdraw is not None:
            self.withdraw(self.cancelled("its session was closed"))
        if self._lifecycle.turn_running:
            self._over = over = anyio.Event()
            self._is_closing = True
            if self._scope is not None:
                self._scope.cancel()
            with cancel_scope(loop_clock()() + seconds):
                while self._lifecycle.turn_running:
                    with anyio.move_on_after(1):  # an interrupted turn may end without a word
                        await over.wait()
        return not self._lifecycle.turn_running

    async def run(
        self,
        prompt: str | list[dict[str, Any]] | None,
        seconds: float | None,
        answer_format: AnswerFormat[Any] | None = None,
    ) -> Any:
        """Run one turn and return the orchestrator's text; without a prompt, go on with the one that was cut off.

        Args:
            prompt: The text of the user, or blocks.
            seconds: For the whole turn.
            answer_format: The text is read as an answer in this format, and the value returned.

        Raises:
            ExecutionCancelled: The token asked for an immediate stop, or the session was closed meanwhile.
            ExecutionTimeout: The turn's own deadline passed.
            BudgetError: A call did not fit into the session's budget, or it cannot be enforced.
            ContractError: The orchestrator returned no text.
            BaseException: Whatever the orchestrator raised, unchanged.
        """
        recorded, hooks = RecordedTurn(), self._coordinator.hooks
        self._running = recorded
        try:
            hooks.record_into(recorded.events)
            recorded.text = text = await self._run_checked(recorded, prompt, seconds, answer_format)
            recorded.value = value = text if answer_format is None else self._read(text, answer_format)
            if self._status.status == "cancelled":
                recorded.stop_reason = "cancelled"
            return value
        except BaseException as exc:
            recorded.asked = self._coordinator.cancellation.asked_at
            recorded.note(exc)
            raise
        finally:
            hooks.record_into(None)
            recorded.ended = time.monotonic()
            self.latest, self._running = recorded, None

    async def _run_checked(
        self,
        recorded: RecordedTurn,
        prompt: str | list[dict[str, Any]] | None,
        seconds: float | None,
        answer_format: AnswerFormat[Any] | None,
    ) -> str:
        """Run a turn, unless it has to be refused."""
        token = self._coordinator.cancellation
        method = "execute" if prompt is not None else "resume"
        execute = self._method(method)
        if answer_format is not None:
            self._require(execute, method, "answer_format", "give typed answers", "leave result_type out")
        if isinstance(prompt, list):
            self._require(execute, method, "prompt_blocks", "take blocks in a prompt", "give the prompt as text")
        if token.is_immediate:
            raise self.cancelled("it was stopped before it began; call cancellation.reset() to run again")
        until = math.inf if seconds is None else loop_clock()() + seconds
        if self.meter is None:
            recorded.prompt = prompt
            return await self._run(execute, prompt, seconds, until, answer_format)
        self.meter.meter_all(self._coordinator.mount_points)
        until = min(until, await self.meter.begin_turn())
        recorded.prompt, outer = prompt, metered_turn.set(self.meter)
        try:
            return await self._run(execute, prompt, seconds, until, answer_format)
        finally:
            metered_turn.reset(outer)
            self.meter.end_turn()

    async def _run(
        self,
        execute: Any,
        prompt: str | list[dict[str, Any]] | None,
        seconds: float | None,
        until: float,
        answer_format: AnswerFormat[Any] | None,
    ) -> str:
        token = self._coordinator.cancellation
        self._begin(is_new=prompt is not None)
        scope = self._scope = cancel_scope(until)
        if self._is_closing:  # since the session was claimed for the turn
            scope.cancel()
        if self.meter is not None:
            self.meter.run_turn(scope.cancel)
        answer: Any = None
        try:
            with scope:
                token.bind(scope)
                await self._announce_start()
                answer = await self._call(execute, prompt, answer_format)
        except BaseException as exc:
            await self._ended_badly(exc)
            self._raise_refusal(exc)
            raise
        finally:
            token.unbind()
            self._scope = None
        return await self._ended(scope, answer, seconds)

    def loop_reports_pieces(self) -> bool:
        """Whether the loop reports the pieces of an answer by itself, if it streams at all."""
        return getattr(self._coordinator.get("orchestrator"), "reports_pieces", False) is True

    def is_unwinding(self) -> bool:
        """Whether the running turn was stopped by its token, its deadline or the closing of the session."""
        return self._scope is not None and self._scope.cancel_called

    @interruptible
    async def _call(
        self, execute: Any, prompt: str | list[dict[str, Any]] | None, answer_format: AnswerFormat[Any] | None
    ) -> Any:
        """Call the orchestrator; what it raises without being an error, such as SystemExit, is its failure (L4)."""
        try:
            arguments = self._arguments(execute, prompt)
            if answer_format is not None:
                arguments["answer_format"] = answer_format
            answer = execute(**arguments)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception:
            raise
        except BaseException as exc:
            raise contained_failure(exc, f"orchestrator {self._orchestrator_name()}") from exc

    def _orchestrator_name(self) -> str:
        return type(self._coordinator.get("orchestrator")).__name__

    # ── before ──

    def _method(self, name: str) -> Any:
        """A method of the orchestrator that runs a turn: ``execute`` or ``resume``."""
        orchestrator, context = self._coordinator.get("orchestrator"), self._coordinator.get("context")
        if orchestrator is None or context is None:
            point, words = ("context", "context manager")
            if orchestrator is None:
                point, words = ("orchestrator", "orchestrator module")
            raise SessionStateError(
                f"No {words} mounted in session {self._coordinator.session_id!r}: the module named in "
                f"session.{point} of the plan mounted nothing"
            )
        if name == "resume" and getattr(orchestrator, name, None) is None:
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot resume a turn: it has no method `resume`. Use a loop that has "
                "one, such as loop-basic or loop-streaming, or begin a new turn with execute(prompt)"
            )
        return getattr(orchestrator, name)

    def _require(self, execute: Any, method: str, parameter: str, what: str, otherwise: str) -> None:
        """Refuse a loop that would ignore an argument: one that takes any keyword need not know this one."""
        if parameter not in inspect.signature(execute).parameters:
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot {what}: its {method} has no parameter `{parameter}`. Use a loop that "
                f"has one, such as loop-basic or loop-streaming, or {otherwise}"
            )

    def _arguments(self, execute: Any, prompt: str | list[dict[str, Any]] | None) -> dict[str, Any]:
        """The keywords of the contract that this orchestrator accepts."""
        coordinator = self._coordinator
        offered: dict[str, Any] = {
            "context": coordinator.get("context"),
            "providers": coordinator.get("providers"),
            "tools": coordinator.get("tools"),
            "hooks": coordinator.hooks,
            "coordinator": coordinator,
        }
        if isinstance(prompt, list):
            offered = {"prompt": text_of_prompt(prompt), "prompt_blocks": prompt, **offered}
        elif prompt is not None:
            offered = {"prompt": prompt, **offered}
        accepted = accepted_keywords(execute)
        return offered if accepted is None else {name: value for name, value in offered.items() if name in accepted}

    def _begin(self, *, is_new: bool) -> None:
        self._coordinator.reset_turn()
        if is_new or self._coordinator.turn_number == 0:
            self._coordinator.turn_number += 1
        self._status.status = "running"
        self._status.last_activity = datetime.now(UTC)

    async def _announce_start(self) -> None:
        coordinator = self._coordinator
        section = coordinator.config.get("session") or {}
        if not self._started:
            self._started = True
            start = SESSION_RESUME if self._is_resumed else SESSION_START
            details: dict[str, Any] = {"session_id": coordinator.session_id, "parent_id": coordinator.parent_id}
            if section.get("metadata"):
                details["metadata"] = section["metadata"]
            await coordinator.hooks.emit(start, details)
        if section.get("raw"):
            await coordinator.hooks.emit(
                SESSION_CONFIG, {"session_id": coordinator.session_id, "raw": redact_secrets(coordinator.config)}
            )

    # ── after ──

    def _raise_refusal(self, exc: BaseException | None) -> None:
        """Raise the error of the budget, whatever the loop made of it: an application must be able to tell it from an answer."""
        refusal = None if self.meter is None else self.meter.refusal
        if refusal is None or isinstance(exc, BudgetError) or (exc is not None and is_cancellation_type(exc)):
            return
        self._note_error(refusal)
        raise refusal from exc

    async def _ended(self, scope: anyio.CancelScope, answer: Any, seconds: float | None) -> str:
        """The orchestrator came back, or our own scope cut it off."""
        token = self._coordinator.cancellation
        # As things are now: whoever hears of the cancellation below may reset the token.
        stopped = token.is_immediate
        if not stopped:
            self._raise_refusal(None)
        # By the clock: asyncio notices a deadline only at an await, and both backends must report the same.
        overran = scope.deadline != math.inf and loop_clock()() >= scope.deadline
        if token.is_cancelled or scope.cancel_called or overran:
            self._status.status = "cancelled"  # before the first await: a held cancel may leave from there
            await self._announce_cancelled(None)
        if not stopped and self._is_closing and scope.cancel_called:
            raise self.cancelled("its session was closed")
        if not stopped and overran and self.meter is not None and self.meter.until <= scope.deadline:
            raise await self.meter.out_of_time()
        if not stopped and overran:
            raise ExecutionTimeout(
                f"the turn of session {self._coordinator.session_id!r} did not end within {seconds:g} s",
                session_id=self._coordinator.session_id,
                seconds=seconds,
            )
        if stopped or scope.cancel_called:
            raise self.cancelled("it was stopped")
        try:
            text = self._checked(answer)
        except ContractError as exc:
            self._note_error(exc)
            raise
        denial = self._coordinator.turn_denial
        if denial is not None and text.strip() == str(denial):
            self._note_error(denial)
            raise denial
        self._status.status = "cancelled" if token.is_cancelled else "completed"
        return text

    def _read(self, text: str, answer_format: AnswerFormat[Any]) -> Any:
        """The value of a typed answer; a graceful stop leaves none."""
        if self._coordinator.cancellation.is_cancelled:
            raise self.cancelled("it was stopped before there was an answer")
        try:
            return answer_format.read_text(text)
        except ResultError as exc:
            self._note_error(exc)
            raise

    async def _ended_badly(self, exc: BaseException) -> None:
        """The orchestrator raised, or the cancellation came from outside."""
        # Ctrl-C arrives as a cancellation on asyncio and as itself on trio; it means the same.
        stopped = is_cancellation_type(exc) or _is_interrupt(exc)
        if not stopped:
            self._note_error(exc)
        if stopped or self._coordinator.cancellation.is_cancelled:
            self._status.status = "cancelled"
            error = None if stopped else failure_words(exc)
            await self._announce_cancelled(error)

    def _note_error(self, exc: BaseException) -> None:
        self._status.status = "failed"
        self._status.last_error = {"type": type(exc).__name__, "message": failure_text(exc)}

    def cancelled(self, why: str) -> ExecutionCancelled:
        """The error of a turn that was stopped, which is noted as the status."""
        token = self._coordinator.cancellation
        self._status.status = "cancelled"
        reason = f" ({token.reason})" if token.reason else ""
        return ExecutionCancelled(
            f"the turn of session {self._coordinator.session_id!r} was cancelled: {why}{reason}",
            session_id=self._coordinator.session_id,
            was_immediate=not token.is_graceful,
            reason=token.reason,
        )

    def _checked(self, answer: Any) -> str:
        """The contract's result: a str that can be written as text (L9, F37)."""
        module = self._orchestrator_name()
        if not isinstance(answer, str):
            raise ContractError(
                f"orchestrator {module} returned {answer!r:.80} ({type(answer).__name__}); expected a str",
                module=module,
            )
        if not answer.isascii():
            try:
                answer.encode()
            except UnicodeEncodeError as exc:
                raise ContractError(
                    f"orchestrator {module} returned text with a lone surrogate at position {exc.start}; "
                    "expected text that can be encoded as UTF-8",
                    module=module,
                ) from exc
        return answer

    # ── cancellation events ──

    async def announce_requests(self) -> None:
        """Emit ``cancel:requested`` for requests not announced yet, and run the callbacks; one caller at a time."""
        while self._announcing is not None:
            await self._announcing.wait()
        token = self._coordinator.cancellation
        if not token.has_requests:
            return
        mine = self._announcing = anyio.Event()
        try:
            for request in token.take_requests():
                details = {
                    "state": request.state.value,
                    "grace": request.grace,
                    "reason": request.reason,
                    "running_tools": token.running_tool_names,
                }
                await self._coordinator.hooks.emit(CANCEL_REQUESTED, details)
                await token.trigger_callbacks()
        finally:
            self._announcing = None
            mine.set()

    async def _announce_cancelled(self, error: str | None) -> None:
        await run_section(self._emit_cancelled, error, name="amplifier cancel:completed", shield=True)

    async def _emit_cancelled(self, error: str | None) -> None:
        await self.announce_requests()
        details: dict[str, Any] = {"was_immediate": not self._coordinator.cancellation.is_graceful}
        if error is not None:
            details["error"] = error
        if self._running is not None:
            asked, now = self._coordinator.cancellation.asked_at, time.monotonic()
            turn = attrs.evolve(self._running, stop_reason="cancelled", asked=asked, ended=now)
            report = StopReport.of(turn, None, self._coordinator.hosting.late)
            details["stopped"] = [] if report is None else [attrs.asdict(part) for part in report.parts]
        await self._coordinator.hooks.emit(CANCEL_COMPLETED, details)


def _is_interrupt(exc: BaseException) -> bool:
    """Whether this is Ctrl-C and nothing else; out of a task group it comes wrapped."""
    if isinstance(exc, BaseExceptionGroup):
        return exc.split(KeyboardInterrupt)[1] is None
    return isinstance(exc, KeyboardInterrupt)


def accepted_keywords(execute: Any) -> frozenset[str] | None:
    """Names of the parameters that ``execute`` takes; None when it takes any.

    The code object answers in half a microsecond what `inspect.signature` answers in thirty.
    """
    function = execute.__func__ if type(execute) is MethodType else execute
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        if code.co_flags & inspect.CO_VARKEYWORDS:
            return None
        return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    try:
        parameters = inspect.signature(execute).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)
