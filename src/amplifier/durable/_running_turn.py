"""One attempt of a turn: its session, its questions, its events, and how it ends."""

from __future__ import annotations

import hashlib
from typing import Any

import anyio
import attrs
import orjson

from amplifier._json import redact_secrets, redact_text
from amplifier.contracts import Step, current_call
from amplifier.contracts._containment import text_of
from amplifier.errors import ContractError, ExecutionCancelled
from amplifier.kernel import AmplifierSession
from amplifier.plan._changes import module_hashes, plan_changes

from ._engine import Question, SessionFactory
from ._errors import EngineUnavailableError, TurnLost
from ._recorded_steps import RecordedSteps
from ._stores import AttemptStore
from ._turn_rows import MOST_ATTEMPTS, ClaimedTurn, Outcome, StopRequest

_LAST = 2**31
_LARGEST_EVENT = 16_384


class _PlanChanged(Exception):
    pass


class RunningTurn:
    """A turn while a worker runs it; also the approval system of its session.

    Args:
        store: Where it is recorded.
        turn: The attempt.
    """

    def __init__(self, store: AttemptStore, turn: ClaimedTurn) -> None:
        self.turn = turn
        self._store = store
        self._session: AmplifierSession | None = None
        self._stop_wanted = turn.stop
        self._stopped = False
        self._scope = anyio.CancelScope()
        self._is_lost = False
        self._waiting: dict[str, tuple[anyio.Event, list[str]]] = {}
        self._early_answers: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._events: list[tuple[str, Any]] = []
        self._position = turn.last_position
        self._storing = anyio.Lock()
        self._is_over = False

    @property
    def is_asking(self) -> bool:
        """Whether it waits for answers."""
        return bool(self._waiting)

    # ── what the worker hears from the store ──

    def lose(self) -> None:
        """Another worker has it: end without a trace."""
        self._is_lost = True
        self._scope.cancel()

    def stop(self, wanted: StopRequest) -> None:
        """End it as a client asks; nothing happens the second time, unless an immediate stop follows a graceful one.

        While there is no session yet, the stop is kept and obeyed like one from before this attempt.
        """
        if self._session is None:
            if self._stop_wanted is None or not wanted.graceful:
                self._stop_wanted = wanted
            return
        if self._stopped and (wanted.graceful or self._stop_wanted == wanted):
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
        if question_id in self._waiting:
            answered, answers = self._waiting[question_id]
            answers.append(option)
            answered.set()
        else:
            self._early_answers[question_id] = option

    async def flush(self) -> None:
        """Store the events that are not stored yet, and withdraw questions that were not answered in time.

        Not when a question is given up: that happens as well when the worker leaves, and then the question can still be answered.
        """
        async with self._storing:
            if self._is_over or self._is_lost:  # the next worker asks the same questions
                return
            position, events = self._take_events()
            try:
                if events:
                    await self._store.add_events(self.turn, position, events)
                while self._given_up:
                    await self._store.withdraw(self.turn, self._given_up.pop())
            except TurnLost:
                self.lose()

    # ── the attempt ──

    async def run(self, make_session: SessionFactory) -> bool:
        """Run it and record how it ends.

        Returns:
            Whether it has ended or is held; False if another worker has it.

        Raises:
            EngineUnavailableError: What happens cannot be recorded; nothing was, and the turn goes on elsewhere.
        """
        with self._scope:
            try:
                outcome = await self._attempt(make_session)
                async with self._storing:  # events that are being stored by `flush` come first
                    self._is_over = True
                    await self._store.finish(self.turn, outcome, *self._take_events())
                return True
            except TurnLost:
                pass
        return False

    async def _attempt(self, make_session: SessionFactory) -> Outcome:
        too_many = self.turn.attempt - self.turn.most_attempts
        if too_many > 0 and self._stop_wanted is None:
            problem = f"{self.turn.attempt - 1} attempts ended with their worker; check the workers' logs, then call resume() or stop()"
            return Outcome(state="held", error_type="TooManyAttempts", error=problem)
        if too_many > MOST_ATTEMPTS:  # to put what it has done into the conversation ends its workers as well
            return Outcome(state="stopped")
        try:
            session = self._session = make_session(self.turn.session_id)
            await self._check_plan(session)
        except _PlanChanged as changed:
            return Outcome(state="held", error_type="PlanChanged", error=str(changed))
        except Exception as exc:  # noqa: BLE001 — the application's code; the turn fails with it
            return _failed(exc, None)
        session.coordinator.register_step_wrapper(RecordedSteps(self._store, self.turn, self._before_new_step))
        if session.coordinator.approval_system is None:
            session.coordinator.approval_system = self
        session.coordinator.hooks.register("*", self._note_event, priority=_LAST, name="durable", timeout=None)
        outcome: Outcome | None = None
        try:
            async with session:
                outcome = await self._execute(session)
        except Exception as exc:  # noqa: BLE001 — opening or closing failed; after an outcome that is logged by the session
            return outcome or _failed(exc, None)
        return outcome

    async def _check_plan(self, session: AmplifierSession) -> None:
        now = module_hashes(session.config)
        if self.turn.plan is None:
            await self._store.note_plan(self.turn, now)
        elif self._stop_wanted is None and (changes := plan_changes(self.turn.plan, session.config)):
            raise _PlanChanged(
                f"the plan is not the one that the turn began with: {'; '.join(changes)}. Nothing was run: give the workers "
                "the former plan and call resume(), call resume() to go on with the new one, or stop the turn"
            )

    async def _execute(self, session: AmplifierSession) -> Outcome:
        context: Any = session.coordinator.get("context")
        if await context.get_messages():
            raise ContractError(
                "the context of the session has messages before its turn begins; expected one that begins empty, such as "
                "context-simple: the engine keeps the conversation"
            )
        await context.set_messages(self.turn.messages)
        session.coordinator.turn_number = self.turn.number - 1
        try:
            answer = await session.execute(self.turn.prompt)
        except ExecutionCancelled:
            if not self._stopped:
                raise
            return Outcome(state="stopped", messages=await context.get_messages())
        except Exception as exc:  # noqa: BLE001 — whatever the turn raises is how it ends
            return _failed(exc, await context.get_messages())
        return Outcome(
            state="stopped" if self._stopped else "completed", answer=answer, messages=await context.get_messages()
        )

    async def _before_new_step(self, step: Step) -> None:
        """Obey a stop from before the session, now that what is recorded comes into the conversation.

        The loop refuses a tool call that follows a graceful stop; an immediate one would cut off calls of the same answer that have
        recorded results. A model call, beside which no tool runs, is cancelled.
        """
        if self._stop_wanted is None or self._session is None:
            return
        self.stop(attrs.evolve(self._stop_wanted, graceful=True) if step.kind == "tool" else self._stop_wanted)
        if step.kind == "model":
            self._session.coordinator.cancellation.request_immediate(reason=self._stop_wanted.reason)
            await anyio.sleep_forever()  # until the cancellation arrives, which takes a turn of the event loop

    async def _note_event(self, event: str, data: dict[str, Any]) -> None:
        self._position += 1
        self._events.append((event, _slim(data)))

    def _take_events(self) -> tuple[int, list[tuple[str, Any]]]:
        """Events that are not stored yet, and the position of the last one."""
        events, self._events = self._events, []
        return self._position, events

    # ── approvals ──

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Store the question and wait until a client answers it, in this process or in a later one."""
        call = current_call()
        is_tool = call is not None and call.kind == "tool"
        key = "" if call is None else f"{call.turn_number}/{call.iteration}/{call.call_id}"
        name = hashlib.sha256(orjson.dumps([key, prompt, options])).hexdigest()[:16]
        question = Question(
            question_id=name,
            prompt=prompt,
            options=tuple(options),
            tool_name=call.tool_name if call is not None and is_tool else None,
            tool_call_id=call.call_id if call is not None and is_tool else None,
        )
        answer = await self._store.ask(self.turn, question)
        if answer is None:
            answer = self._early_answers.pop(name, None)
        if answer is not None:
            return answer
        answered, answers = self._waiting[name] = (anyio.Event(), [])
        self._given_up.discard(name)
        try:
            await answered.wait()
        finally:
            del self._waiting[name]
            if not answers:
                self._given_up.add(name)
        return answers[0]


def _failed(exc: Exception, messages: list[dict[str, Any]] | None) -> Outcome:
    """How a turn ends that raised; an error of the store is no end, so it is raised, also out of a group of failed calls."""
    leaves: list[BaseException] = [exc]
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, EngineUnavailableError | TurnLost):
            raise leaf
        if isinstance(leaf, BaseExceptionGroup):
            leaves.extend(leaf.exceptions)
    error = redact_text(text_of(exc))
    return Outcome(state="failed", error_type=type(exc).__name__, error=error, messages=messages)


def _slim(data: dict[str, Any]) -> Any:
    """A payload as JSON without secrets; of a very large one, the whole conversation for example, only the plain values."""
    safe = redact_secrets(data)
    text = orjson.dumps(safe, default=str, option=orjson.OPT_NON_STR_KEYS)
    if len(text) > _LARGEST_EVENT:
        plain = {key: value for key, value in safe.items() if isinstance(value, str | int | float | bool | None)}
        kept = {key: value for key, value in plain.items() if not isinstance(value, str) or len(value) < 1000}
        return {**kept, "truncated": True}
    return orjson.loads(text)
