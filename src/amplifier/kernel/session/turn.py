"""One turn: the orchestrator inside its cancel scope, and the events before and after it."""

from __future__ import annotations

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

from amplifier._internal.json import redact_secrets
from amplifier.contracts.cancellation import (
    cancel_scope,
    contained_failure,
    current_time,
    is_cancellation_type,
)
from amplifier.errors import (
    BudgetError,
    ContentFilterError,
    ContractError,
    ExecutionCancelled,
    ExecutionDenied,
    ExecutionTimeout,
    ResultError,
    SessionStateError,
)
from amplifier.events import (
    CANCEL_COMPLETED,
    PROMPT_SUBMIT,
    SESSION_CONFIG,
)
from amplifier.models import SessionStatus
from amplifier.models.prompts import text_of_prompt
from amplifier.models.turns import RecordedEvent, StopReport, TurnReport

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.deadlines import failure_text, failure_words
from ..runtime.frames import WaitInfo

if TYPE_CHECKING:  # only typed answers and budgets need these
    from amplifier.budget import SessionMeter
    from amplifier.models.answers import AnswerFormat

logger: logging.Logger = logging.getLogger("amplifier.session")

Prompt = str | list[dict[str, Any]]
"""The prompt of the user: text, or a list of blocks."""

current_meter: ContextVar[SessionMeter | None] = ContextVar("amplifier_current_meter", default=None)
"""Meter of the enclosing turn with a budget, if any. A session opened there shares the budget."""

# A method of an orchestrator. The contract doesn't fix its keywords.
Execute = Callable[..., Any]


class Turn:
    """One turn of a session.

    `run` is called once. ``session.last_turn`` keeps the turn after its end. Its events are stored
    as they are, and folded into a report only on request.

    Args:
        coordinator: The coordinator of the session.
        status: The status record of the session, which the turn updates.
        meter: The meter that counts the calls of the session. None without a budget.
        start_event: The event to emit before anything else in the first turn. None in later turns.
        prompt: The prompt. None to resume the interrupted turn.
        seconds: Time for the whole turn, or None for no limit.
        answer_format: The format of a typed answer, or None for text.

    Attributes:
        prompt: The prompt, or None if it isn't part of the conversation.
        events: The events from which the report is made.
        text: The orchestrator's text, or None without an answer.
        value: The answer: the text, or the value of a typed answer.
        stop_reason: The reason why the turn ended without a regular answer, or None.
        error: The text of the error that ended the turn, or None.
        began: The time at which the turn started, by the monotonic clock.
        ended: The time at which the turn ended, by the monotonic clock. 0 while it is running.
        asked: The time of the request to stop, by the monotonic clock. None without a request.
        has_announced_start: True once the turn has announced its start event.
        mark: An object that identifies the turn where a reference to the turn would keep the
            session alive.
    """

    __slots__ = (
        "_answer_format",
        "_coordinator",
        "_is_over",
        "_meter",
        "_over",
        "_report",
        "_scope",
        "_seconds",
        "_session_closes",
        "_start_event",
        "_status",
        "asked",
        "began",
        "ended",
        "error",
        "events",
        "has_announced_start",
        "mark",
        "prompt",
        "stop_reason",
        "text",
        "value",
    )

    def __init__(
        self,
        coordinator: ModuleCoordinator,
        status: SessionStatus,
        meter: SessionMeter | None,
        start_event: str | None,
        prompt: Prompt | None,
        seconds: float | None,
        answer_format: AnswerFormat[Any] | None,
    ) -> None:
        self._coordinator = coordinator
        self._status = status
        self._meter = meter
        self._start_event = start_event
        self._seconds = seconds
        self._answer_format = answer_format
        self._scope: anyio.CancelScope | None = None
        self._session_closes = False
        self._is_over = False
        self._over: anyio.Event | None = None
        self._report: TurnReport | None = None
        self.prompt: Prompt | None = prompt
        self.events: list[RecordedEvent] = []
        self.text: str | None = None
        self.value: Any = None
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.began: float = time.monotonic()
        self.ended: float = 0.0
        self.asked: float | None = None
        self.has_announced_start: bool = False
        self.mark: object = object()

    def wait_info(self) -> WaitInfo:
        """Describe the turn for reports about sessions that hang."""
        until = None if self._scope is None else self._scope.deadline
        return WaitInfo(coordinator=self._coordinator, label="a turn", until=until)

    # ── running ──

    async def run(self) -> Any:
        """Run the turn and return its value.

        Raises:
            ExecutionCancelled: The token asked for an immediate stop, or the session was closed.
            ExecutionTimeout: The turn's deadline passed.
            BudgetError: A call didn't fit into the session's budget, or the budget can't be
                enforced.
            ContractError: The orchestrator returned something other than text.
            BaseException: An error of the orchestrator, unchanged.
        """
        hooks, prompt = self._coordinator.hooks, self.prompt
        # A prompt that is refused before it reaches the loop isn't part of the conversation.
        self.prompt = None
        try:
            hooks.record_into(self.events)
            self.text = self.value = await self._run_metered(prompt)
            if self._answer_format is not None:
                self.value = self._read_value(self.text, self._answer_format)
            if self._status.status == "cancelled":
                self.stop_reason = "cancelled"
            return self.value
        except BaseException as exc:
            self.asked = self._coordinator.cancellation.asked_at
            self._note_outcome(exc)
            if _is_interrupt(exc) and not isinstance(exc, KeyboardInterrupt):
                # A task group in the orchestrator has wrapped the KeyboardInterrupt.
                raise KeyboardInterrupt from exc
            raise
        finally:
            hooks.record_into(None)
            self.ended = time.monotonic()

    def finish(self) -> None:
        """Record that the turn has fully ended."""
        self._is_over = True
        if self._over is not None:
            self._over.set()

    async def cancel_and_wait(self, seconds: float) -> bool:
        """Cancel the turn because its session closes, and wait until it has ended.

        Returns:
            True if it has ended, False after ``seconds``.
        """
        self._session_closes = True
        if self._scope is not None:
            self._scope.cancel()
        # Wake shielded emitters. Their reader may be the code that closes the session.
        self._coordinator.hooks.stop_waiting()
        self._over = self._over or anyio.Event()
        with cancel_scope(current_time() + seconds):
            if not self._is_over:
                await self._over.wait()
        return self._is_over

    async def _run_metered(self, prompt: Prompt | None) -> str:
        """Check that the turn may start, and run it within the session's budget, if it has one."""
        method = "execute" if prompt is not None else "resume"
        execute = self._method(method)
        if self._answer_format is not None:
            self._require(
                execute, method, "answer_format", "give typed answers", "leave result_type out"
            )
        if isinstance(prompt, list):
            self._require(
                execute,
                method,
                "prompt_blocks",
                "take blocks in a prompt",
                "give the prompt as text",
            )
        if self._coordinator.cancellation.is_immediate:
            advice = "call cancellation.reset() to run again"
            raise self._cancelled(f"it was stopped before it began; {advice}")
        until = math.inf if self._seconds is None else current_time() + self._seconds
        meter = self._meter
        if meter is None:
            self.prompt = prompt
            return await self._run_in_scope(execute, prompt, until)
        meter.meter_all(self._coordinator.mount_points)
        until = min(until, await meter.begin_turn())
        self.prompt, outer = prompt, current_meter.set(meter)
        try:
            return await self._run_in_scope(execute, prompt, until)
        finally:
            current_meter.reset(outer)
            meter.end_turn()

    async def _run_in_scope(self, execute: Execute, prompt: Prompt | None, until: float) -> str:
        token, meter = self._coordinator.cancellation, self._meter
        self._begin(is_new=prompt is not None)
        scope = self._scope = cancel_scope(until)
        if self._session_closes:
            scope.cancel()
        if meter is not None:
            meter.run_turn(scope.cancel)
        answer: Any = None
        try:
            with scope:
                token.bind(scope)
                await self._announce_start()
                answer = await self._call(execute, prompt)
        except BaseException as exc:
            await self._end_with_error(exc)
            self._raise_refusal(exc)
            raise
        finally:
            token.unbind()
            self._scope = None
        return await self._end_with_answer(scope, answer)

    def _begin(self, *, is_new: bool) -> None:
        self._coordinator.reset_turn()
        if is_new or self._coordinator.turn_number == 0:
            self._coordinator.turn_number += 1
        self._status.status = "running"
        self._status.last_activity = datetime.now(UTC)

    async def _announce_start(self) -> None:
        coordinator = self._coordinator
        section = coordinator.config.get("session") or {}
        identity: dict[str, Any] = {"session_id": coordinator.session_id}
        if self._start_event is not None:
            self.has_announced_start = True
            details = {**identity, "parent_id": coordinator.parent_id}
            if section.get("metadata"):
                details["metadata"] = section["metadata"]
            await coordinator.hooks.emit(self._start_event, details)
        if section.get("raw"):
            raw = redact_secrets(coordinator.config)
            await coordinator.hooks.emit(SESSION_CONFIG, {**identity, "raw": raw})

    # ── the orchestrator ──

    async def _call(self, execute: Execute, prompt: Prompt | None) -> Any:
        """Call the orchestrator. Contain a BaseException it raises, such as SystemExit."""
        try:
            arguments = self._arguments(execute, prompt)
            if self._answer_format is not None:
                arguments["answer_format"] = self._answer_format
            answer = execute(**arguments)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception:
            raise
        except BaseException as exc:
            raise contained_failure(exc, f"orchestrator {self._orchestrator_name()}") from exc

    def _orchestrator_name(self) -> str:
        return type(self._coordinator.get("orchestrator")).__name__

    def _method(self, name: str) -> Execute:
        """Return the orchestrator's method that runs a turn: ``execute`` or ``resume``."""
        orchestrator = self._coordinator.get("orchestrator")
        context = self._coordinator.get("context")
        if orchestrator is None or context is None:
            point, noun = ("context", "context manager")
            if orchestrator is None:
                point, noun = ("orchestrator", "orchestrator module")
            raise SessionStateError(
                f"No {noun} mounted in session {self._coordinator.session_id!r}: the module named "
                f"in session.{point} of the plan mounted nothing"
            )
        method: Execute | None = getattr(orchestrator, name, None)
        if method is None and name == "resume":
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot resume a turn: it has no method "
                "`resume`. Use a loop that has one, such as loop-basic or loop-streaming, or "
                "begin a new turn with execute(prompt)"
            )
        return method or getattr(orchestrator, name)

    def _require(
        self, execute: Execute, method: str, parameter: str, ability: str, otherwise: str
    ) -> None:
        """Check that an orchestrator has a parameter. One with ``**kwargs`` may ignore it."""
        if parameter not in inspect.signature(execute).parameters:
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot {ability}: its {method} has no "
                f"parameter `{parameter}`. Use a loop that has one, such as loop-basic or "
                f"loop-streaming, or {otherwise}"
            )

    def _arguments(self, execute: Execute, prompt: Prompt | None) -> dict[str, Any]:
        """Return those keyword arguments of the contract that this orchestrator accepts."""
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
        if accepted is None:
            return offered
        return {name: value for name, value in offered.items() if name in accepted}

    # ── the end ──

    async def _end_with_answer(self, scope: anyio.CancelScope, answer: object) -> str:
        """Return the orchestrator's text, or raise the error for the stop."""
        token, meter = self._coordinator.cancellation, self._meter
        # Read the token now, because a handler of the events below may reset it.
        stopped = token.is_immediate
        if not stopped:
            self._raise_refusal(None)
        # Check the clock as well, because asyncio enforces a deadline only at an await.
        overran = scope.deadline != math.inf and current_time() >= scope.deadline
        if token.is_cancelled or scope.cancel_called or overran:
            self._status.status = "cancelled"
            await self._announce_cancelled(None)
        if not stopped and self._session_closes and scope.cancel_called:
            raise self._cancelled("its session was closed")
        if not stopped and overran and meter is not None and meter.until <= scope.deadline:
            raise await meter.out_of_time()
        if not stopped and overran:
            session_id = self._coordinator.session_id
            raise ExecutionTimeout(
                f"the turn of session {session_id!r} did not end within {self._seconds:g} s",
                session_id=session_id,
                seconds=self._seconds,
            )
        if stopped or scope.cancel_called:
            raise self._cancelled("it was stopped")
        try:
            text = self._checked_text(answer)
        except ContractError as exc:
            self._note_failure(exc)
            raise
        denial = self._coordinator.effects.denial
        if denial is not None and text.strip() == str(denial):
            self._note_failure(denial)
            raise denial
        self._status.status = "cancelled" if token.is_cancelled else "completed"
        return text

    async def _end_with_error(self, exc: BaseException) -> None:
        """Record that the orchestrator raised, or that the cancellation came from outside."""
        # Ctrl-C arrives as a cancellation on asyncio and as a KeyboardInterrupt on trio.
        stopped = is_cancellation_type(exc) or _is_interrupt(exc)
        if not stopped:
            self._note_failure(exc)
        if stopped or self._coordinator.cancellation.is_cancelled:
            self._status.status = "cancelled"
            await self._announce_cancelled(None if stopped else failure_words(exc))

    def _raise_refusal(self, exc: BaseException | None) -> None:
        """Raise the error of the budget, so that no orchestrator can turn it into an answer."""
        meter = self._meter
        refusal = None if meter is None else meter.refusal
        if refusal is None or isinstance(exc, BudgetError):
            return
        if exc is not None and is_cancellation_type(exc):
            return
        self._note_failure(refusal)
        raise refusal from exc

    def _read_value(self, text: str, answer_format: AnswerFormat[Any]) -> Any:
        """Return the value of a typed answer, or raise if the turn was asked to stop."""
        if self._coordinator.cancellation.is_cancelled:
            raise self._cancelled("it was stopped before there was an answer")
        try:
            return answer_format.read_text(text)
        except ResultError as exc:
            self._note_failure(exc)
            raise

    def _checked_text(self, answer: object) -> str:
        """Return the orchestrator's result if it is text that can be encoded (L9)."""
        module = self._orchestrator_name()
        if not isinstance(answer, str):
            found = f"{answer!r:.80} ({type(answer).__name__})"
            raise ContractError(
                f"orchestrator {module} returned {found}; expected a str",
                module=module,
            )
        if not answer.isascii():
            try:
                answer.encode()
            except UnicodeEncodeError as exc:
                raise ContractError(
                    f"orchestrator {module} returned text with a lone surrogate at position "
                    f"{exc.start}; expected text that can be encoded as UTF-8",
                    module=module,
                ) from exc
        return answer

    def _cancelled(self, reason: str) -> ExecutionCancelled:
        """Record a stop in the status, and return the error to raise."""
        self._status.status = "cancelled"
        return cancelled_error(self._coordinator, reason)

    async def _announce_cancelled(self, error: str | None) -> None:
        """Emit ``cancel:completed``, after the requests that haven't been announced yet."""
        with cancel_scope(shield=True):
            token, hooks = self._coordinator.cancellation, self._coordinator.hooks
            await token.announce_requests(hooks.emit)
            details: dict[str, Any] = {"was_immediate": not token.is_graceful}
            if error is not None:
                details["error"] = error
            self.stop_reason, self.asked = "cancelled", token.asked_at
            self.ended = time.monotonic()
            report = StopReport.of(self, None, self._coordinator.hosting.late)
            # More events may follow, so drop the folded report.
            self._report = None
            parts = [] if report is None else report.parts
            details["stopped"] = [attrs.asdict(part) for part in parts]
            await hooks.emit(CANCEL_COMPLETED, details)

    # ── the record ──

    def _note_failure(self, exc: BaseException) -> None:
        self._status.status = "failed"
        self._status.last_error = {"type": type(exc).__name__, "message": failure_text(exc)}

    def _note_outcome(self, exc: BaseException) -> None:
        """Record the exception that ended the turn."""
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
            if exc.event == PROMPT_SUBMIT:  # not part of the conversation
                self.prompt = None
        # The text of a cancellation is about scopes and tasks, so it isn't recorded.
        is_plain_stop = is_cancellation_type(exc) or _is_interrupt(exc)
        if is_plain_stop or isinstance(exc, ExecutionCancelled):
            self.stop_reason = "cancelled"
        self.error = "cancelled" if is_plain_stop else failure_words(exc)

    def report(self) -> TurnReport:
        """Return the report of the turn. It is folded from the events once."""
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
            if self._is_over:
                self.events = []
        return self._report


def cancelled_error(coordinator: ModuleCoordinator, reason: str) -> ExecutionCancelled:
    """Return the error of a turn that was stopped."""
    token = coordinator.cancellation
    given = f" ({token.reason})" if token.reason else ""
    return ExecutionCancelled(
        f"the turn of session {coordinator.session_id!r} was cancelled: {reason}{given}",
        session_id=coordinator.session_id,
        was_immediate=not token.is_graceful,
        reason=token.reason,
    )


def _is_interrupt(exc: BaseException) -> bool:
    """Return whether this is a KeyboardInterrupt, or a group that contains nothing else."""
    if isinstance(exc, BaseExceptionGroup):
        return exc.split(KeyboardInterrupt)[1] is None
    return isinstance(exc, KeyboardInterrupt)


def accepted_keywords(execute: Execute) -> frozenset[str] | None:
    """Return the names of the parameters of ``execute``, or None if it takes any keyword.

    Reading the code object takes half a microsecond, `inspect.signature` thirty.
    """
    function = execute.__func__ if isinstance(execute, MethodType) else execute
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
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
