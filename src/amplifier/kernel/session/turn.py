"""One turn: the orchestrator inside its cancel scope, and the events before and after it.

The session claims itself for the turn and guards it against native cancels; this file calls the orchestrator, binds the
cancellation token to the turn's scope, and distinguishes the ways a turn can end.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from amplifier._json import redact_secrets, redact_text
from amplifier.contracts._containment import contained_failure, is_cancellation_type, text_of
from amplifier.contracts._scopes import cancel_scope, loop_clock
from amplifier.errors import (
    BudgetError,
    ContractError,
    ExecutionCancelled,
    ExecutionTimeout,
    ResultError,
    SessionStateError,
)
from amplifier.events import (
    CANCEL_COMPLETED,
    CANCEL_REQUESTED,
    SESSION_CONFIG,
    SESSION_RESUME,
    SESSION_START,
)
from amplifier.models import SessionStatus

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.running_call import RunningCall
from ..runtime.sections import run_section
from ..runtime.stepping import function_of
from .lifecycle import Lifecycle

if TYPE_CHECKING:  # packages that only typed answers and budgets need
    from amplifier.answers import AnswerFormat
    from amplifier.budget import SessionMeter

metered_turn: ContextVar[SessionMeter | None] = ContextVar("amplifier_metered_turn", default=None)
"""Of the turn with a budget that the running code is part of. A session that is opened there uses the same budget."""

logger: logging.Logger = logging.getLogger("amplifier.session")


class TurnRunner:
    """Runs the turns of one session, one at a time.

    Attributes:
        meter: Counts the calls of the session; None without a budget.
    """

    __slots__ = (
        "_announcing",
        "_coordinator",
        "_is_closing",
        "_is_resumed",
        "_lifecycle",
        "_over",
        "_scope",
        "_started",
        "_status",
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
        self._is_closing = False
        self.meter: SessionMeter | None = None
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
        self.withdraw = None
        self._lifecycle.end_turn()
        if self._over is not None:
            self._over.set()

    async def end_running_turn(self) -> None:
        """Cancel a turn that runs in another task and wait for it: nothing may write into a closed session."""
        if self.withdraw is not None:
            self.withdraw(self._cancelled("its session was closed"))
        if not self._lifecycle.turn_running:
            return
        self._over = anyio.Event()
        self._is_closing = True
        if self._scope is not None:
            self._scope.cancel()
        while self._lifecycle.turn_running:
            with anyio.move_on_after(self._coordinator.deadlines.teardown):
                await self._over.wait()
                return
            logger.error(
                "a turn of session %r does not end although it was cancelled; waiting", self._coordinator.session_id
            )

    async def run(
        self, prompt: str | None, seconds: float | None, answer_format: AnswerFormat[Any] | None = None
    ) -> Any:
        """Run one turn and return the orchestrator's text; without a prompt, go on with the one that was cut off.

        Args:
            prompt: The text of the user.
            seconds: For the whole turn.
            answer_format: The text is read as an answer in this format, and the value returned.

        Raises:
            ExecutionCancelled: The token asked for an immediate stop, or the session was closed meanwhile.
            ExecutionTimeout: The turn's own deadline passed.
            BudgetError: A call did not fit into the session's budget, or it cannot be enforced.
            ContractError: The orchestrator returned no text.
            BaseException: Whatever the orchestrator raised, unchanged.
        """
        token = self._coordinator.cancellation
        execute = self._orchestrator_execute() if prompt is not None else self._orchestrator_resume()
        if answer_format is not None:
            self._require_typed_answers(execute, "execute" if prompt is not None else "resume")
        if token.is_immediate:
            raise self._cancelled("it was stopped before it began; call cancellation.reset() to run again")
        until = math.inf if seconds is None else loop_clock()() + seconds
        if self.meter is None:
            return await self._run(execute, prompt, seconds, until, answer_format)
        self.meter.meter_all(self._coordinator.mount_points)
        until = min(until, await self.meter.begin_turn())
        outer = metered_turn.set(self.meter)
        try:
            return await self._run(execute, prompt, seconds, until, answer_format)
        finally:
            metered_turn.reset(outer)
            self.meter.end_turn()

    async def _run(
        self,
        execute: Any,
        prompt: str | None,
        seconds: float | None,
        until: float,
        answer_format: AnswerFormat[Any] | None,
    ) -> Any:
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
        text = await self._ended(scope, answer, seconds)
        return text if answer_format is None else self._read(text, answer_format)

    def is_unwinding(self) -> bool:
        """Whether the running turn was stopped by its token, its deadline or the closing of the session."""
        return self._scope is not None and self._scope.cancel_called

    async def _call(self, execute: Any, prompt: str | None, answer_format: AnswerFormat[Any] | None) -> Any:
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

    def _orchestrator_execute(self) -> Any:
        orchestrator, context = self._coordinator.get("orchestrator"), self._coordinator.get("context")
        if orchestrator is None or context is None:
            point, words = ("context", "context manager")
            if orchestrator is None:
                point, words = ("orchestrator", "orchestrator module")
            raise SessionStateError(
                f"No {words} mounted in session {self._coordinator.session_id!r}: the module named in "
                f"session.{point} of the plan mounted nothing"
            )
        return orchestrator.execute

    def _orchestrator_resume(self) -> Any:
        self._orchestrator_execute()  # refuses a session without its modules
        resume = getattr(self._coordinator.get("orchestrator"), "resume", None)
        if resume is None:
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot resume a turn: it has no method `resume`. Use a loop that has "
                "one, such as loop-basic or loop-streaming, or begin a new turn with execute(prompt)"
            )
        return resume

    def _require_typed_answers(self, execute: Any, method: str) -> None:
        """Refuse a loop that would ignore the format: one that takes any keyword need not know this one."""
        if "answer_format" not in inspect.signature(execute).parameters:
            raise SessionStateError(
                f"orchestrator {self._orchestrator_name()} cannot give typed answers: its {method} has no parameter "
                "`answer_format`. Use a loop that has one, such as loop-basic or loop-streaming, or leave result_type out"
            )

    def _arguments(self, execute: Any, prompt: str | None) -> dict[str, Any]:
        """The keywords of the contract that this orchestrator accepts."""
        coordinator = self._coordinator
        offered: dict[str, Any] = {
            "context": coordinator.get("context"),
            "providers": coordinator.get("providers"),
            "tools": coordinator.get("tools"),
            "hooks": coordinator.hooks,
            "coordinator": coordinator,
        }
        if prompt is not None:
            offered = {"prompt": prompt, **offered}
        accepted = _accepted_keywords(execute)
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
            details: dict[str, Any] = {"session_id": coordinator.session_id, "parent_id": coordinator.parent_id}
            if section.get("metadata"):
                details["metadata"] = section["metadata"]
            await coordinator.hooks.emit(SESSION_RESUME if self._is_resumed else SESSION_START, details)
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
        overran = loop_clock()() >= scope.deadline
        if token.is_cancelled or scope.cancel_called or overran:
            self._status.status = "cancelled"  # before the first await: a held cancel may leave from there
            await self._announce_cancelled(None)
        if not stopped and self._is_closing and scope.cancel_called:
            raise self._cancelled("its session was closed")
        if not stopped and overran and self.meter is not None and self.meter.until <= scope.deadline:
            raise await self.meter.out_of_time()
        if not stopped and overran:
            raise ExecutionTimeout(
                f"the turn of session {self._coordinator.session_id!r} did not end within {seconds:g} s",
                session_id=self._coordinator.session_id,
                seconds=seconds,
            )
        if stopped or scope.cancel_called:
            raise self._cancelled("it was stopped")
        try:
            text = self._checked(answer)
        except ContractError as exc:
            self._note_error(exc)
            raise
        self._status.status = "cancelled" if token.is_cancelled else "completed"
        return text

    def _read(self, text: str, answer_format: AnswerFormat[Any]) -> Any:
        """The value of a typed answer; a graceful stop leaves none."""
        if self._coordinator.cancellation.is_cancelled:
            raise self._cancelled("it was stopped before there was an answer")
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
            error = None if stopped else f"{type(exc).__name__}: {redact_text(text_of(exc))}"
            await self._announce_cancelled(error)

    def _note_error(self, exc: BaseException) -> None:
        self._status.status = "failed"
        self._status.last_error = {"type": type(exc).__name__, "message": redact_text(text_of(exc))}

    def _cancelled(self, why: str) -> ExecutionCancelled:
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
        await self._coordinator.hooks.emit(CANCEL_COMPLETED, details)


def _is_interrupt(exc: BaseException) -> bool:
    """Whether this is Ctrl-C and nothing else; out of a task group it comes wrapped."""
    if isinstance(exc, BaseExceptionGroup):
        return exc.split(KeyboardInterrupt)[1] is None
    return isinstance(exc, KeyboardInterrupt)


def _accepted_keywords(execute: Any) -> frozenset[str] | None:
    """Names of the parameters that ``execute`` takes; None when it takes any.

    The code object answers in half a microsecond what `inspect.signature` answers in thirty.
    """
    function = function_of(execute)
    if function is not None and not hasattr(function, "__wrapped__"):
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
