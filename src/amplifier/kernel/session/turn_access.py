"""Running turns: a prompt in, text or a value of the caller's type out, at once or as a stream of events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from amplifier.contracts import DEFAULT, Inherited
from amplifier.errors import ExecutionCancelled, SessionStateError

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.backend import Loop
from ..runtime.deadlines import check_timeout
from ..runtime.sections import run_section
from .lifecycle import Lifecycle
from .stream import TurnStream
from .turn import TurnRunner

if TYPE_CHECKING:  # a package that only typed answers need
    from amplifier.answers import AnswerFormat

T = TypeVar("T")

# Lifecycles, not ids: two sessions may have one id. Not sessions: a task that a turn leaves behind keeps its context.
inside_turn_of: ContextVar[tuple[Lifecycle, ...]] = ContextVar("amplifier_inside_turn_of", default=())


class TurnAccess:
    """The part of `AmplifierSession` that runs turns."""

    session_id: str
    coordinator: ModuleCoordinator
    _lifecycle: Lifecycle
    _turns: TurnRunner
    _loop: Loop | None

    @overload
    async def execute(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT) -> str: ...
    @overload
    async def execute(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]) -> T: ...
    @overload
    async def execute(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: Any) -> Any: ...
    async def execute(
        self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> Any:
        """Run one turn.

        Args:
            prompt: The text of the user.
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
            TypeError: ``result_type`` has no JSON Schema.
            MissingExtraError: Typed answers take packages that are not installed.
            ContractError: The orchestrator returned something else than text.
        """
        answer_format = _answer_format(result_type)
        return await self._run_turn(_checked_prompt(prompt), self._claim_turn(timeout), answer_format)

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
        return await self._run_turn(None, self._claim_turn(timeout), answer_format)

    def _claim_turn(self, timeout: float | Inherited | None) -> float | None:
        """Claim the session for a turn, which `_run_turn` gives back; returns the seconds of the turn."""
        seconds = self.coordinator.deadlines.turn if timeout is DEFAULT else check_timeout(timeout)
        self._lifecycle.begin_turn()
        return seconds

    async def _run_turn(
        self, prompt: str | None, seconds: float | None, answer_format: AnswerFormat[Any] | None
    ) -> Any:
        """Run a turn that the session is claimed for."""
        self._turns.withdraw = None
        inside = inside_turn_of.set((*inside_turn_of.get(), self._lifecycle))
        try:
            self._require_own_loop()
            return await run_section(
                self._turns.run,
                prompt,
                seconds,
                answer_format,
                name=f"amplifier turn {self.session_id}",
                isolate=True,
                is_unwinding=self._turns.is_unwinding,
            )
        finally:
            inside_turn_of.reset(inside)
            self._turns.end_turn()

    def _require_own_loop(self) -> None:
        if self._loop is None or not self._loop.is_running_here():
            raise SessionStateError(f"session {self.session_id!r} was opened on another event loop; use it there")

    @overload
    def stream(self, prompt: str, *, timeout: float | Inherited | None = DEFAULT) -> TurnStream[str]: ...
    @overload
    def stream(
        self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: type[T]
    ) -> TurnStream[T]: ...
    @overload
    def stream(
        self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: Any
    ) -> TurnStream[Any]: ...
    def stream(
        self, prompt: str, *, timeout: float | Inherited | None = DEFAULT, result_type: Any = None
    ) -> TurnStream[Any]:
        """Run one turn and watch it: ``async with session.stream(prompt) as events: async for event in events``.

        The session belongs to the turn from entering the block on: another turn is refused. Leaving the block early cancels the
        turn. What `execute` would raise is raised from the iteration. With a ``result_type`` there are events with the part of
        the answer that has arrived.
        """
        return self._stream(partial(_checked_prompt, prompt), timeout, _answer_format(result_type))

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
        check_prompt: Callable[[], str | None],
        timeout: float | Inherited | None,
        answer_format: AnswerFormat[Any] | None,
    ) -> TurnStream[Any]:
        def claim(withdraw: Callable[[ExecutionCancelled], None]) -> Callable[[], Awaitable[Any]]:
            run = partial(self._run_turn, check_prompt(), self._claim_turn(timeout), answer_format)
            self._turns.withdraw = withdraw
            return run

        return TurnStream(claim, self._turns.end_turn, self.coordinator.hooks, answer_format=answer_format)


def _checked_prompt(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise TypeError(f"a prompt must be a str, got {type(prompt).__name__}: {prompt!r:.80}")
    return prompt


def _answer_format(result_type: Any) -> AnswerFormat[Any] | None:
    """The format of an answer of this type; None for text, which every answer is."""
    if result_type is None or result_type is str:
        return None
    from amplifier.answers import answer_format  # noqa: PLC0415 — only typed answers need it

    return answer_format(result_type)
