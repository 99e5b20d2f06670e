"""One attempt of a turn: its session, its questions, its events and its end."""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import JSON, redact_secrets, redact_text
from amplifier.contracts import CHILD_STEPS, Step, current_call, tool_repeatable
from amplifier.contracts.cancellation import text_of
from amplifier.errors import ContractError, ExecutionCancelled, ExecutionTimeout
from amplifier.events import PROVIDER_REQUEST
from amplifier.kernel import AmplifierSession
from amplifier.plan.dicts import module_hashes, plan_changes
from amplifier.shared_sessions import Question, Questions

from ._engine import SessionFactory
from ._errors import DurableError, EngineClosedError, EngineUnavailableError, TurnLost
from ._recorded_steps import RecordedSteps
from ._reporting import count_attempt, count_end
from ._suspects import MAX_DEATHS, NO_LIMITS, CallLimits
from ._values import (
    PLAN_CHANGED,
    ClaimedTurn,
    Outcome,
    StopRequest,
    TurnState,
    as_json,
    prompt_of,
    storable_text,
    with_compactions,
    without_compactions,
)

if TYPE_CHECKING:
    from ._turn_record import TurnRecord

_LAST = 2**31
_MAX_ITERATIONS = 1_000_000
"""Limit of iterations for replaying a turn, since its own loop may have had any limit."""
_MAX_EVENT_SIZE = 16_384
_MAX_SHOWN_MESSAGES = 4
_MAX_ERROR_LENGTH = 20_000
_MAX_REASON_LENGTH = 1000
_ENGINE_ERRORS = (EngineClosedError, EngineUnavailableError, TurnLost)
"""Errors of the engine or the worker. The turn continues elsewhere."""
_CONTENT_ERRORS = (DurableError, TypeError, ValueError, OverflowError, RecursionError)
"""Errors of values that are to be stored, unless they are `_ENGINE_ERRORS`.

Any other error ends the worker, and the turn continues elsewhere.
"""

logger = logging.getLogger("amplifier.durable")


class RunningTurn:
    """A turn while a worker runs it, and the approval system of its session.

    Args:
        store: Stores the records of the turn.
        turn: The attempt.
        max_deaths: The number of workers that may die while running the turn before it fails.
        limits: The call limits of the worker.
    """

    def __init__(
        self,
        store: TurnRecord,
        turn: ClaimedTurn,
        max_deaths: int = MAX_DEATHS,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        self.turn = turn
        self._max_deaths = max_deaths
        self._store = store
        self._steps = RecordedSteps(
            store, turn, self._before_new_step, self.stop, limits, self._may_repeat
        )
        self._session: AmplifierSession | None = None
        self._stop_wanted = turn.stop
        self._stopped = False
        # True while the conversation lacks the records of earlier attempts.
        self._is_behind = bool(turn.results)
        # True in a session that only replays records.
        self._is_played_back = False
        self._scope = anyio.CancelScope()
        self._is_lost = False
        self._questions = Questions(closed=self._note_closed)
        self._early_answers: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._events: list[tuple[str, Any]] = []
        self._storing = anyio.Lock()
        # A separate limiter, so that busy tools don't delay storing.
        self._threads = anyio.CapacityLimiter(2)
        self._is_over = False

    @property
    def is_ending(self) -> bool:
        """True once the end of the turn is being recorded."""
        return self._is_over

    @property
    def waiting_for(self) -> list[str]:
        """The ids of the questions that the turn waits for."""
        return [question.question_id for question in self._questions.waiting()]

    @property
    def is_asking(self) -> bool:
        """True while the turn waits for answers."""
        return bool(self._questions.waiting())

    # ── news from the store ──

    def lose(self) -> None:
        """End the attempt without recording anything, because another worker has the turn."""
        self._is_lost = True
        self._scope.cancel()

    def leave(self) -> None:
        """Hand the turn over as soon as none of its calls is running. No new ones start."""
        self._steps.calls.leave(self.lose)

    def stop(self, wanted: StopRequest) -> None:
        """End the turn as a client requested.

        A second request has no effect, unless an immediate stop follows a graceful one. Before
        there is a session, the stop is stored and handled like a stop from before this attempt. If
        the session is opening, the opening is interrupted.
        """
        if self._session is None:
            if self._stop_wanted is None or not wanted.graceful:
                self._stop_wanted = wanted
            return
        if self._is_played_back or (
            self._stopped and (wanted.graceful or self._stop_wanted == wanted)
        ):
            return
        self._stopped = True
        self._stop_wanted = wanted
        token = self._session.coordinator.cancellation
        if wanted.graceful:
            token.request_graceful(reason=wanted.reason)
        else:
            token.request_immediate(reason=wanted.reason)

    def answer(self, question_id: str, option: str) -> None:
        """Pass on an answer, or keep it if the waiting task hasn't run since it was stored."""
        if not self._questions.answer(question_id, option):
            self._early_answers[question_id] = option

    def _note_closed(self, question: Question, answer: str | None) -> None:
        if answer is None:
            self._given_up.add(question.question_id)

    async def flush(self) -> None:
        """Store new events, and withdraw questions that weren't answered in time.

        Questions aren't withdrawn as soon as their task stops waiting. That also happens when the
        worker exits, and then a question can still be answered.
        """
        async with self._storing:
            # After a lost attempt, the next worker asks the same questions.
            if self._is_over or self._is_lost:
                return
            events = await self._take_events()
            try:
                if events:
                    await self._store.add_events(self.turn, events)
                while self._given_up:
                    await self._store.withdraw(self.turn, self._given_up.pop())
            except TurnLost:
                self.lose()
            except _ENGINE_ERRORS:
                raise
            except _CONTENT_ERRORS as exc:  # must not stop the worker
                problem = redact_text(text_of(exc))
                logger.warning(
                    "events of turn %s cannot be stored, watchers miss them: %s",
                    self.turn.turn_id,
                    problem,
                )

    # ── the attempt ──

    async def run(self, make_session: SessionFactory) -> bool:
        """Run the turn and record its end.

        Returns:
            True if it has ended or is held. False if another worker has it.

        Raises:
            EngineUnavailableError: Nothing can be recorded, and the turn continues elsewhere.
        """
        delay = (
            time.time() - self.turn.since if self.turn.attempt == 1 and self.turn.since else None
        )
        count_attempt(is_takeover=self.turn.deaths > 0, delay=delay)
        with self._scope:
            try:
                outcome = await self._attempt(make_session)
                # Wait for a `flush` that is storing events.
                async with self._storing:
                    self._is_over = True
                    await self._finish(outcome)
                count_end(outcome.state)
                return True
            except TurnLost:
                pass
        return False

    async def _finish(self, outcome: Outcome) -> None:
        """Record the end.

        An end that can't be stored is recorded as a failure, since every further attempt would end
        the same way.
        """
        try:
            await self._store.finish(self.turn, outcome, await self._take_events())
        except _ENGINE_ERRORS:
            raise
        except _CONTENT_ERRORS as exc:
            problem = (
                f"the turn ended ({outcome.state}), and that cannot be stored: "
                f"{redact_text(text_of(exc))[:_MAX_REASON_LENGTH]}; the conversation is the one "
                "before the turn"
            )
            logger.warning("turn %s fails: %s", self.turn.turn_id, problem)
            failed = Outcome(state="failed", error_type=type(exc).__name__, error=problem)
            await self._store.finish(self.turn, failed, [])

    async def _attempt(self, make_session: SessionFactory) -> Outcome:
        if self.turn.deaths > self._max_deaths:
            # Replaying the turn has killed workers as well.
            return self._too_many_deaths()
        if self.turn.deaths == self._max_deaths:
            return await self._end_unopened(self._too_many_deaths())
        if self._seconds_left() == 0:
            late = Outcome(
                state="failed",
                error_type=ExecutionTimeout.__name__,
                error="the deadline of the turn has passed",
            )
            return await self._end_unopened(late)
        try:
            session = self._session = call_factory(make_session, self.turn.session_id)
            problem = None if self.turn.plan is None else plan_problem(session, self.turn.plan)
            self._steps.calls.plan = (
                module_hashes(session.config) if self.turn.plan is None else None
            )
        except Exception as exc:  # noqa: BLE001 — the application's code; the turn fails with it
            return await self._end_unopened(_failed(exc, None))
        if self._stop_wanted is not None:
            return await self._end_unopened(Outcome(state="stopped"))
        if problem is not None:
            return Outcome(state="held", error_type=PLAN_CHANGED, error=problem)
        session.coordinator.register_step_wrapper(self._steps)
        session.coordinator.register_capability(CHILD_STEPS, self._steps.of_child)
        if session.coordinator.approval_system is None:
            session.coordinator.approval_system = self
        session.coordinator.hooks.register(
            "*", self._note_event, priority=_LAST, name="durable", timeout=None
        )
        outcome: Outcome | None = None
        try:
            async with session:
                outcome = await self._execute(session)
        except Exception as exc:  # noqa: BLE001 — opening or closing failed
            # If there is an outcome, the session has logged the failure.
            outcome = outcome or await self._end_unopened(_failed(exc, None))
        return await self._end_unopened(outcome) if self._stopped and self._is_behind else outcome

    def _too_many_deaths(self) -> Outcome:
        problem = (
            f"{self.turn.deaths} workers died while they ran this turn, so it counts as the cause "
            "and is not tried again; check the workers' logs, for example for a want of memory"
        )
        state: TurnState = "failed" if self._stop_wanted is None else "stopped"
        return Outcome(state=state, error_type="TooManyDeaths", error=problem)

    async def _end_unopened(self, end: Outcome) -> Outcome:
        """Return the end of a turn without a usable session, with its recorded conversation.

        The session couldn't be created or opened, or was stopped in the meantime.
        """
        played: Outcome | None = None
        try:
            if self.turn.results:
                played = await self._play_back()
        except Exception as error:  # noqa: BLE001 — unreadable records would fail every attempt
            _raise_engine_error(error)
            problem = redact_text(text_of(error))
            logger.warning(
                "the steps of turn %s are not in the conversation: %s", self.turn.turn_id, problem
            )
        if self._stop_wanted is not None:
            if played is not None and played.state == "completed":
                # The turn had finished all its steps when it was stopped.
                return played
            logger.info(
                "turn %s was stopped; its session did not open: %s", self.turn.turn_id, end.error
            )
            end = Outcome(state="stopped")
        return attrs.evolve(end, messages=None if played is None else played.messages)

    async def _play_back(self) -> Outcome:
        """Replay the recorded steps in another session, and stop after the last of them."""
        session = _playback_session(self.turn.session_id, self._session)
        session.coordinator.register_step_wrapper(self._steps)
        self._session, self._stopped, self._is_behind, self._is_played_back = (
            session,
            False,
            False,
            True,
        )
        self.turn = attrs.evolve(self.turn, deadline_at=None)
        async with session:
            return await self._execute(session)

    async def _execute(self, session: AmplifierSession) -> Outcome:
        context: Any = session.coordinator.get("context")
        if await context.get_messages():
            raise ContractError(
                "the context of the session has messages before its turn begins; expected one that "
                "begins empty, such as context-simple: the engine keeps the conversation"
            )
        messages, compactions = without_compactions(self.turn.messages)
        await context.set_messages(messages)
        if compactions and hasattr(context, "restore_compactions"):
            await context.restore_compactions(compactions)
        session.coordinator.turn_number = self.turn.number - 1
        try:
            seconds = self._seconds_left()
            limit: dict[str, Any] = {} if seconds is None else {"timeout": max(seconds, 0.001)}
            prompt, schema = prompt_of(self.turn)
            answer = await session.execute(prompt, result_type=schema, **limit)
        except ExecutionCancelled:
            if not self._stopped:
                raise
            return Outcome(state="stopped", messages=await _conversation(context))
        except Exception as exc:  # noqa: BLE001 — the turn's own failure
            return _failed(exc, await _conversation(context))
        text = answer if schema is None else as_json(answer)
        state: TurnState = "stopped" if self._stopped else "completed"
        return Outcome(state=state, answer=text, messages=await _conversation(context))

    def _seconds_left(self) -> float | None:
        return (
            None if self.turn.deadline_at is None else max(self.turn.deadline_at - time.time(), 0.0)
        )

    async def _before_new_step(self, step: Step) -> None:
        """Apply a stop request before a new step starts. A model call is cancelled.

        No tool runs alongside a model call. After the last record of a replayed turn, the loop
        refuses tool calls as after a graceful stop. An immediate stop would interrupt calls of the
        same answer that have recorded results.
        """
        self._is_behind = False
        if self._session is None or (self._stop_wanted is None and not self._is_played_back):
            return
        self._stopped = self._stopped or self._is_played_back
        token = self._session.coordinator.cancellation
        reason = None if self._stop_wanted is None else self._stop_wanted.reason
        if step.kind == "model":
            token.request_immediate(reason=reason)
            # The cancellation arrives in a later round of the event loop.
            await anyio.sleep_forever()
        elif self._is_played_back:
            token.request_graceful(reason=reason)

    def _may_repeat(self, tool: str) -> bool:
        """Return whether the session's tool declares that a call can be repeated."""
        tools: dict[str, Any] = (
            {} if self._session is None else self._session.coordinator.get("tools") or {}
        )
        try:
            return tool_repeatable(tools.get(tool)) is True
        except ContractError:  # reported by the loop
            return False

    def _note_event(self, event: str, data: dict[str, JSON]) -> None:
        messages = data.get("messages")
        if (
            event == PROVIDER_REQUEST
            and isinstance(messages, list)
            and len(messages) > _MAX_SHOWN_MESSAGES
        ):
            # Shorten the list, because every request repeats the whole conversation.
            left_out = len(messages) - _MAX_SHOWN_MESSAGES
            data = {**data, "messages": messages[left_out:], "messages_left_out": left_out}
        if _is_larger(data, _MAX_EVENT_SIZE):
            data = {**_plain(data), "truncated": True}
        self._events.append((event, data))

    async def _take_events(self) -> list[str]:
        """Return the unstored events as JSON. A thread removes secrets from them."""
        events, self._events = self._events, []
        texts: list[str] = []
        if events:
            # The time is bounded by the size of the events.
            with anyio.CancelScope(shield=True):
                texts = await anyio.to_thread.run_sync(_slim, events, limiter=self._threads)
        return texts

    # ── approvals ──

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Store the question and wait for an answer, in this process or a later one."""
        call = current_call()
        # The keys are the options as clients see them.
        offered = {storable_text(option, allows_nul=False): option for option in options}
        is_tool = call is not None and call.kind == "tool"
        key = "" if call is None else f"{call.turn_number}/{call.iteration}/{call.call_id}"
        recorded = (
            self._steps.calls.keys.get((call.session_id, key), key) if call is not None else key
        )
        begun = self.turn.started.get(recorded, 0) if is_tool else 0
        # An answer permits one execution. A call that was interrupted since then needs a new
        # answer.
        parts = [recorded, prompt, options, begun] if begun else [recorded, prompt, options]
        name = hashlib.sha256(as_json(parts).encode()).hexdigest()[:16]
        question = Question(
            question_id=name,
            prompt=storable_text(prompt, allows_nul=True),
            options=tuple(offered),
            tool_name=call.tool_name if call is not None and is_tool else None,
            tool_call_id=call.call_id if call is not None and is_tool else None,
        )
        answer = await self._store.ask(self.turn, question)
        if answer is None:
            answer = self._early_answers.pop(name, None)
        if answer is not None:
            return offered.get(answer, answer)
        self._given_up.discard(name)
        answer = str(await self._questions.ask(question))
        return offered.get(answer, answer)


def _playback_session(session_id: str, session: AmplifierSession | None) -> AmplifierSession:
    """Return a session for replaying a turn. It can always be opened.

    The model is never called, since the turn is stopped at the first call without a record.

    Args:
        session_id: The session of the turn.
        session: The turn's own session, if it could be created. Its loop may start conversations
            with a system prompt.
    """
    own: Any = {} if session is None else session.config["session"]["orchestrator"]
    system_prompt = (
        (own.get("config") or {}).get("system_prompt") if isinstance(own, dict) else None
    )
    loop = {
        "max_iterations": _MAX_ITERATIONS,
        "system_prompt": system_prompt if isinstance(system_prompt, str) else None,
    }
    parts = {
        "orchestrator": {"module": "loop-basic", "config": loop},
        "context": {"module": "context-simple", "config": {"summary_seconds": None}},
    }
    return AmplifierSession(
        {"session": parts, "providers": ["provider-mock"]}, session_id=session_id
    )


async def _conversation(context: Any) -> list[dict[str, JSON]]:
    """Return the conversation of a context with the journal of its compactions.

    Thanks to the journal, the next turn doesn't repeat these decisions.
    """
    records = context.compaction_records() if hasattr(context, "compaction_records") else []
    return with_compactions(await context.get_messages(), records)


def plan_problem(session: AmplifierSession, plan: Mapping[str, str]) -> str | None:
    """Return the reason why a session can't continue a turn with this plan, or None if it can."""
    changes = plan_changes(dict(plan), session.config)
    if not changes:
        return None
    return (
        f"the plan is not the one that the turn began with: {'; '.join(changes)}. Nothing was run: "
        "start a worker with the former plan, call resume() to go on with the new one, or stop the "
        "turn"
    )


def call_factory(make_session: SessionFactory, session_id: str) -> AmplifierSession:
    """Return the session that the application creates.

    Raises:
        TypeError: The function returned anything else.
        RuntimeError: The function tried to end the process.
    """
    try:
        session: Any = make_session(session_id)
    # SystemExit would end this worker, and every other worker that takes the turn.
    except SystemExit as error:
        raise RuntimeError(
            f"make_session called sys.exit({error.code!r:.80}); expected an AmplifierSession"
        ) from error
    if isinstance(session, AmplifierSession):
        return session
    if inspect.iscoroutine(session):
        # Python would warn about a coroutine that was never awaited.
        session.close()
        raise TypeError(
            "make_session must be a plain function that returns an AmplifierSession, got an async "
            "one; do async work in mount() of a module"
        )
    raise TypeError(
        "make_session must return an AmplifierSession, got "
        f"{type(session).__name__}: {session!r:.80}"
    )


def _raise_engine_error(exc: Exception) -> None:
    """Raise an error of the engine, even from a group of failed calls.

    Such errors don't end a turn.
    """
    leaves: list[BaseException] = [exc]
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, _ENGINE_ERRORS):
            raise leaf
        if isinstance(leaf, BaseExceptionGroup):
            leaves.extend(leaf.exceptions)


def _failed(exc: Exception, messages: list[dict[str, JSON]] | None) -> Outcome:
    """Return the end of a turn that raised."""
    _raise_engine_error(exc)
    error = redact_text(text_of(exc)[:_MAX_ERROR_LENGTH])
    return Outcome(state="failed", error_type=type(exc).__name__, error=error, messages=messages)


def _slim(events: list[tuple[str, Any]]) -> list[str]:
    """Return names and payloads as JSON without secrets.

    A very large payload is reduced to its plain values.
    """
    slim: list[str] = []
    for name, data in events:
        try:
            safe = redact_secrets(data)
            text = as_json(safe)
            if len(text) > _MAX_EVENT_SIZE:
                text = as_json({**_plain(safe), "truncated": True})
        except Exception as error:  # noqa: BLE001 — conversions of third-party objects
            text = as_json({"problem": f"the payload cannot be shown: {type(error).__name__}"})
        slim.append(f"[{as_json(name)},{text}]")
    return slim


def _plain(data: dict[str, JSON]) -> dict[str, JSON]:
    plain = {
        key: value
        for key, value in data.items()
        if isinstance(value, str | int | float | bool | None)
    }
    return {
        key: value
        for key, value in plain.items()
        if not isinstance(value, str) or len(value) < 1000
    }


def _is_larger(value: object, size: int) -> bool:
    """Return whether a value has more than ``size`` characters and parts, without reading more."""
    waiting: list[Any] = [value]
    while waiting and size >= 0:
        part = waiting.pop()
        if isinstance(part, str | bytes | bytearray):
            size -= len(part)
        elif isinstance(part, Mapping):
            waiting += islice(part.keys(), size + 1)
            waiting += islice(part.values(), size + 1)
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += islice(part, size + 1)
        elif attrs.has(type(part)):
            waiting += [getattr(part, field.name, None) for field in attrs.fields(type(part))]
        size -= 1
    return size < 0
