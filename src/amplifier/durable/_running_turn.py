"""One attempt of a turn: its session, its questions, its events, and how it ends."""

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

from amplifier._internal.json import redact_secrets, redact_text
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
from ._suspects import MOST_DEATHS, NO_LIMITS, CallLimits
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
_MOST_ITERATIONS = 1_000_000  # of a turn that is played back; its own loop had a limit
_LARGEST_EVENT = 16_384
_SHOWN_MESSAGES = 4
_LONGEST_ERROR = 20_000
_LONGEST_REASON = 1000
_ENGINE_ERRORS = (EngineClosedError, EngineUnavailableError, TurnLost)
"""About the engine or the worker, not about the turn, which goes on elsewhere."""
_CONTENT_ERRORS = (DurableError, TypeError, ValueError, OverflowError, RecursionError)
"""About what is to be stored, unless they are `_ENGINE_ERRORS`. Others end the worker, and the turn goes on elsewhere."""

logger = logging.getLogger("amplifier.durable")


class RunningTurn:
    """A turn while a worker runs it; also the approval system of its session.

    Args:
        store: Where it is recorded.
        turn: The attempt.
        most_deaths: Workers that may die while they run it; then it fails.
        limits: Of the worker.
    """

    def __init__(
        self,
        store: TurnRecord,
        turn: ClaimedTurn,
        most_deaths: int = MOST_DEATHS,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        self.turn = turn
        self._most_deaths = most_deaths
        self._store = store
        self._steps = RecordedSteps(
            store, turn, self._before_new_step, self.stop, limits, self._may_repeat
        )
        self._session: AmplifierSession | None = None
        self._stop_wanted = turn.stop
        self._stopped = False
        self._is_behind = bool(
            turn.results
        )  # what earlier attempts have recorded is not in the conversation yet
        self._is_played_back = False  # by a session that does only that
        self._scope = anyio.CancelScope()
        self._is_lost = False
        self._questions = Questions(closed=self._note_closed)
        self._early_answers: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._events: list[tuple[str, Any]] = []
        self._storing = anyio.Lock()
        self._threads = anyio.CapacityLimiter(
            2
        )  # own ones, so that busy tools do not keep events from being noted
        self._is_over = False

    @property
    def is_ending(self) -> bool:
        """Whether its end is being recorded."""
        return self._is_over

    @property
    def waiting_for(self) -> list[str]:
        """The ids of the questions that it waits for."""
        return [question.question_id for question in self._questions.waiting()]

    @property
    def is_asking(self) -> bool:
        """Whether it waits for answers."""
        return bool(self._questions.waiting())

    # ── what the worker hears from the store ──

    def lose(self) -> None:
        """Another worker has it: end without a trace."""
        self._is_lost = True
        self._scope.cancel()

    def leave(self) -> None:
        """Hand it over as soon as none of its calls runs; no new ones begin."""
        self._steps.calls.leave(self.lose)

    def stop(self, wanted: StopRequest) -> None:
        """End it as a client asks; nothing happens the second time, unless an immediate stop follows a graceful one.

        While there is no session yet, the stop is kept and obeyed like one from before this attempt; a session that opens is not
        opened any further.
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
        """Someone has answered; kept if the store has the question, but the task that asked has not run since."""
        if not self._questions.answer(question_id, option):
            self._early_answers[question_id] = option

    def _note_closed(self, question: Question, answer: str | None) -> None:
        if answer is None:
            self._given_up.add(question.question_id)

    async def flush(self) -> None:
        """Store the events that are not stored yet, and withdraw questions that were not answered in time.

        Not when a question is given up: that happens as well when the worker leaves, and then the question can still be answered.
        """
        async with self._storing:
            if self._is_over or self._is_lost:  # the next worker asks the same questions
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
            except _CONTENT_ERRORS as exc:  # what a turn contains must not end the worker
                problem = redact_text(text_of(exc))
                logger.warning(
                    "events of turn %s cannot be stored, watchers miss them: %s",
                    self.turn.turn_id,
                    problem,
                )

    # ── the attempt ──

    async def run(self, make_session: SessionFactory) -> bool:
        """Run it and record how it ends.

        Returns:
            Whether it has ended or is held; False if another worker has it.

        Raises:
            EngineUnavailableError: What happens cannot be recorded; nothing was, and the turn goes on elsewhere.
        """
        delay = (
            time.time() - self.turn.since if self.turn.attempt == 1 and self.turn.since else None
        )
        count_attempt(is_takeover=self.turn.deaths > 0, delay=delay)
        with self._scope:
            try:
                outcome = await self._attempt(make_session)
                async with self._storing:  # events that are being stored by `flush` come first
                    self._is_over = True
                    await self._finish(outcome)
                count_end(outcome.state)
                return True
            except TurnLost:
                pass
        return False

    async def _finish(self, outcome: Outcome) -> None:
        """Record how it ends; as failed if that cannot be stored, since every further attempt would end in the same way."""
        try:
            await self._store.finish(self.turn, outcome, await self._take_events())
        except _ENGINE_ERRORS:
            raise
        except _CONTENT_ERRORS as exc:
            problem = (
                f"the turn ended ({outcome.state}), and that cannot be stored: {redact_text(text_of(exc))[:_LONGEST_REASON]}; the "
                "conversation is the one before the turn"
            )
            logger.warning("turn %s fails: %s", self.turn.turn_id, problem)
            failed = Outcome(state="failed", error_type=type(exc).__name__, error=problem)
            await self._store.finish(self.turn, failed, [])

    async def _attempt(self, make_session: SessionFactory) -> Outcome:
        if self.turn.deaths > self._most_deaths:  # to play it back ends its workers as well
            return self._too_many_deaths()
        if self.turn.deaths == self._most_deaths:
            return await self._end_unopened(self._too_many_deaths())
        if self._seconds_left() == 0:
            late = Outcome(
                state="failed",
                error_type=ExecutionTimeout.__name__,
                error="the deadline of the turn has passed",
            )
            return await self._end_unopened(late)
        try:
            session = self._session = made(make_session, self.turn.session_id)
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
        except Exception as exc:  # noqa: BLE001 — opening or closing failed; after an outcome that is logged by the session
            outcome = outcome or await self._end_unopened(_failed(exc, None))
        return await self._end_unopened(outcome) if self._stopped and self._is_behind else outcome

    def _too_many_deaths(self) -> Outcome:
        problem = (
            f"{self.turn.deaths} workers died while they ran this turn, so it counts as the cause and is not tried again; check the "
            "workers' logs, for example for a want of memory"
        )
        state: TurnState = "failed" if self._stop_wanted is None else "stopped"
        return Outcome(state=state, error_type="TooManyDeaths", error=problem)

    async def _end_unopened(self, end: Outcome) -> Outcome:
        """How it ends if its session is not, or cannot be, made or opened, or was stopped meanwhile; what was done before is kept."""
        played: Outcome | None = None
        try:
            if self.turn.results:
                played = await self._play_back()
        except Exception as error:  # noqa: BLE001 — records that cannot be read are no reason to try again for ever
            _raise_engine_error(error)
            problem = redact_text(text_of(error))
            logger.warning(
                "what turn %s did is not in the conversation: %s", self.turn.turn_id, problem
            )
        if self._stop_wanted is not None:
            if (
                played is not None and played.state == "completed"
            ):  # it had done everything when it was stopped
                return played
            logger.info(
                "turn %s was stopped; its session did not open: %s", self.turn.turn_id, end.error
            )
            end = Outcome(state="stopped")
        return attrs.evolve(end, messages=None if played is None else played.messages)

    async def _play_back(self) -> Outcome:
        """The turn as far as it has come: run in another session, and stopped where its records end."""
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
                "the context of the session has messages before its turn begins; expected one that begins empty, such as "
                "context-simple: the engine keeps the conversation"
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
        except Exception as exc:  # noqa: BLE001 — whatever the turn raises is how it ends
            return _failed(exc, await _conversation(context))
        text = answer if schema is None else as_json(answer)
        state: TurnState = "stopped" if self._stopped else "completed"
        return Outcome(state=state, answer=text, messages=await _conversation(context))

    def _seconds_left(self) -> float | None:
        return (
            None if self.turn.deadline_at is None else max(self.turn.deadline_at - time.time(), 0.0)
        )

    async def _before_new_step(self, step: Step) -> None:
        """Obey a stop before something new begins. A model call, beside which no tool runs, is cancelled.

        Where the records of a turn end that is only played back, the loop refuses tool calls as after a graceful stop; an immediate one
        would cut off calls of the same answer that have recorded results.
        """
        self._is_behind = False
        if self._session is None or (self._stop_wanted is None and not self._is_played_back):
            return
        self._stopped = self._stopped or self._is_played_back
        token = self._session.coordinator.cancellation
        reason = None if self._stop_wanted is None else self._stop_wanted.reason
        if step.kind == "model":
            token.request_immediate(reason=reason)
            await (
                anyio.sleep_forever()
            )  # until the cancellation arrives, which takes a turn of the event loop
        elif self._is_played_back:
            token.request_graceful(reason=reason)

    def _may_repeat(self, tool: str) -> bool:
        """Whether the tool of the session declares that a call can be made again."""
        tools: dict[str, Any] = (
            {} if self._session is None else self._session.coordinator.get("tools") or {}
        )
        try:
            return tool_repeatable(tools.get(tool)) is True
        except ContractError:  # the loop names the problem where it matters
            return False

    def _note_event(self, event: str, data: dict[str, Any]) -> None:
        messages = data.get("messages")
        if (
            event == PROVIDER_REQUEST
            and isinstance(messages, list)
            and len(messages) > _SHOWN_MESSAGES
        ):
            # Every request repeats the whole conversation.
            left_out = len(messages) - _SHOWN_MESSAGES
            data = {**data, "messages": messages[left_out:], "messages_left_out": left_out}
        if _is_larger(data, _LARGEST_EVENT):
            data = {**_plain(data), "truncated": True}
        self._events.append((event, data))

    async def _take_events(self) -> list[str]:
        """Events that are not stored yet, as JSON; secrets are searched for in a thread."""
        events, self._events = self._events, []
        texts: list[str] = []
        if events:
            with anyio.CancelScope(shield=True):  # bounded by their size
                texts = await anyio.to_thread.run_sync(_slim, events, limiter=self._threads)
        return texts

    # ── approvals ──

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Store the question and wait until a client answers it, in this process or in a later one."""
        call = current_call()
        offered = {
            storable_text(option, allows_nul=False): option for option in options
        }  # as clients see them
        is_tool = call is not None and call.kind == "tool"
        key = "" if call is None else f"{call.turn_number}/{call.iteration}/{call.call_id}"
        recorded = (
            self._steps.calls.keys.get((call.session_id, key), key) if call is not None else key
        )
        begun = self.turn.started.get(recorded, 0) if is_tool else 0
        # An answer permits one execution: a call that has begun since then and was cut off is a new question.
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
    """A session that can always be opened; its model is never asked, since the turn is stopped at its first call without a record.

    Args:
        session_id: Of the turn.
        session: The turn's own, if it could be made; its loop may begin conversations with a system prompt.
    """
    own: Any = {} if session is None else session.config["session"]["orchestrator"]
    found = (own.get("config") or {}).get("system_prompt") if isinstance(own, dict) else None
    loop = {
        "max_iterations": _MOST_ITERATIONS,
        "system_prompt": found if isinstance(found, str) else None,
    }
    parts = {
        "orchestrator": {"module": "loop-basic", "config": loop},
        "context": {"module": "context-simple", "config": {"summary_seconds": None}},
    }
    return AmplifierSession(
        {"session": parts, "providers": ["provider-mock"]}, session_id=session_id
    )


async def _conversation(context: Any) -> list[dict[str, Any]]:
    """The conversation of a context with the journal of its compactions, so that the next turn decides none of them anew."""
    records = context.compaction_records() if hasattr(context, "compaction_records") else []
    return with_compactions(await context.get_messages(), records)


def plan_problem(session: AmplifierSession, plan: Mapping[str, str]) -> str | None:
    """Why a worker that makes this session cannot go on with a turn that began with this plan; None if it can."""
    changes = plan_changes(dict(plan), session.config)
    if not changes:
        return None
    return (
        f"the plan is not the one that the turn began with: {'; '.join(changes)}. Nothing was run: start a worker with the former plan, "
        "call resume() to go on with the new one, or stop the turn"
    )


def made(make_session: SessionFactory, session_id: str) -> AmplifierSession:
    """The session that the application makes.

    Raises:
        TypeError: It makes something else.
        RuntimeError: It wants to end the process.
    """
    try:
        made: Any = make_session(session_id)
    except SystemExit as error:  # would end this worker, and every other one that takes the turn
        raise RuntimeError(
            f"make_session called sys.exit({error.code!r:.80}); expected an AmplifierSession"
        ) from error
    if isinstance(made, AmplifierSession):
        return made
    if inspect.iscoroutine(made):
        made.close()  # else Python would warn that no one awaited it
        raise TypeError(
            "make_session must be a plain function that returns an AmplifierSession, got an async one; do what has to be awaited in "
            "mount() of a module"
        )
    raise TypeError(
        f"make_session must return an AmplifierSession, got {type(made).__name__}: {made!r:.80}"
    )


def _raise_engine_error(exc: Exception) -> None:
    """Raise an error about the engine, also out of a group of failed calls: it is no end of a turn."""
    leaves: list[BaseException] = [exc]
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, _ENGINE_ERRORS):
            raise leaf
        if isinstance(leaf, BaseExceptionGroup):
            leaves.extend(leaf.exceptions)


def _failed(exc: Exception, messages: list[dict[str, Any]] | None) -> Outcome:
    """How a turn ends that raised."""
    _raise_engine_error(exc)
    error = redact_text(text_of(exc)[:_LONGEST_ERROR])
    return Outcome(state="failed", error_type=type(exc).__name__, error=error, messages=messages)


def _slim(events: list[tuple[str, Any]]) -> list[str]:
    """Names and payloads as JSON without secrets; of a very large one, the whole conversation for example, only the plain values."""
    slim: list[str] = []
    for name, data in events:
        try:
            safe = redact_secrets(data)
            text = as_json(safe)
            if len(text) > _LARGEST_EVENT:
                text = as_json({**_plain(safe), "truncated": True})
        except Exception as error:  # noqa: BLE001 — objects of modules write themselves
            text = as_json({"problem": f"the payload cannot be shown: {type(error).__name__}"})
        slim.append(f"[{as_json(name)},{text}]")
    return slim


def _plain(data: dict[str, Any]) -> dict[str, Any]:
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


def _is_larger(value: Any, most: int) -> bool:
    """Whether a value has more than so many characters and parts; looks at no more than that."""
    waiting = [value]
    while waiting and most >= 0:
        each = waiting.pop()
        if isinstance(each, str | bytes | bytearray):
            most -= len(each)
        elif isinstance(each, Mapping):
            waiting += islice(each.keys(), most + 1)
            waiting += islice(each.values(), most + 1)
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += islice(each, most + 1)
        elif attrs.has(type(each)):
            waiting += [getattr(each, field.name, None) for field in attrs.fields(type(each))]
        most -= 1
    return most < 0
