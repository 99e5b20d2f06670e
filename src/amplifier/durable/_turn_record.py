"""The records of one attempt of a turn, as steps of its workflow."""

from __future__ import annotations

import contextvars
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import attrs
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from dbos import DBOS, SQLAlchemyDatasource, StepReservation
from dbos import error as dbos_error

from amplifier._internal.json import JSON
from amplifier.shared_sessions import Question

from ._database import Database, DatabaseDown
from ._errors import EngineUnavailableError, TurnLost
from ._turns import (
    EVENTS,
    QUESTIONS,
    TURNS,
    WAITING,
    Turns,
    answer_id,
    details_of,
    marks_of,
    question_id,
)
from ._values import ClaimedTurn, Outcome, Plan, StepName, StopRequest

T = TypeVar("T")

LOST = (
    dbos_error.DBOSWorkflowConflictIDError,
    dbos_error.DBOSWorkflowCancelledError,
    dbos_error.DBOSUnexpectedStepError,
    dbos_error.DBOSStepNondeterminismError,
)
"""DBOS's errors for a worker that no longer owns the workflow."""

_STORE_CONVERSATION = """
    INSERT INTO amplifier_conversations (session_id, turns, turn_id, outcome, messages)
    VALUES (:session, 0, :turn, :outcome, :messages) ON CONFLICT (session_id)
    DO UPDATE SET turn_id = excluded.turn_id, outcome = excluded.outcome,
        messages = COALESCE(excluded.messages, amplifier_conversations.messages)
"""


class HandedOver(BaseException):
    """Exits the workflow of a turn that continues elsewhere.

    DBOS would record an Exception as the workflow's end.
    """


class _EventsOver(BaseException):
    """Exits the step in which events are written, so that DBOS doesn't record it."""


@attrs.define(eq=False)
class EventWriter:
    """Writes events to the stream of a turn, in the thread in which DBOS runs its workflow."""

    _database: Database
    _portal: BlockingPortal
    _slot: StepReservation
    _batches: queue.SimpleQueue[Any] = attrs.field(init=False, factory=queue.SimpleQueue)

    def serve(self) -> None:
        """Write batches until `finish`, in a step that is never recorded."""
        with suppress(_EventsOver):
            self._slot.run({"name": "events"}, self._write_all)

    def _write_all(self) -> None:
        while (batch := self._batches.get()) is not None:
            value, on_done = batch
            problem: BaseException | None = None
            try:
                self._database.run(partial(DBOS.write_stream, EVENTS, value))
            except DatabaseDown as error:
                problem = self._database.unavailable(error)
            except Exception as error:  # noqa: BLE001 — passed on to the task that waits
                problem = error
            except LOST:
                problem = TurnLost()
            on_done(problem)
        raise _EventsOver

    def finish(self) -> None:
        """Let `serve` return."""
        self._batches.put(None)

    async def write(self, attempt: int, events: list[str]) -> None:
        """Write a batch.

        Raises:
            TurnLost: Another worker has the turn.
        """
        done, problems = anyio.Event(), []

        def note(problem: BaseException | None) -> None:
            problems.append(problem)
            done.set()

        self._batches.put(
            ({"attempt": attempt, "events": events}, partial(self._portal.call, note))
        )
        await done.wait()
        if problems[0] is not None:
            raise problems[0]


# A step has a number, which DBOS assigns in the order of the calls, and a name, which is the same
# in every attempt. Results are found by name. So neither tools that run at the same time nor a plan
# that has changed can give a result to another call.
#
# DBOS refuses every step of a worker that no longer owns the workflow. If DBOS finds a step of the
# new owner in the same place, `_record` refuses it.


@attrs.define(eq=False)
class TurnRecord:
    """Records one attempt of a turn. Every method raises `TurnLost` once another worker has it.

    Attributes:
        turns: The turns of the database.
        turn_id: The id of the turn.
        worker: The name of the worker that runs the turn.
        context: The context of the workflow, for DBOS.
        datasource: DBOS's access to the conversation.
        writer: Writes the events.
        recording: Cancel scopes of the writes in progress. They are cancelled if the worker gives
            up on the database.
        outcome: The end of the turn, for its workflow. None until it has ended.
    """

    turns: Turns
    turn_id: str
    worker: str
    context: contextvars.Context
    datasource: SQLAlchemyDatasource
    writer: EventWriter
    recording: set[anyio.CancelScope]
    outcome: dict[str, JSON] | None = None
    _attempt: int = 0
    _threads: anyio.CapacityLimiter = attrs.field(
        init=False, factory=lambda: anyio.CapacityLimiter(64)
    )

    # ── beginning ──

    async def claim(self) -> ClaimedTurn | None:
        """Claim the turn and return it with its records, or None if it has ended.

        Raises:
            TurnLost: The turn doesn't belong to this worker.
        """
        return await self.turns.database(self._claim)

    def _claim(self) -> ClaimedTurn | None:
        turns, row = self.turns, self.turns.row(self.turn_id)
        if row.status != "PENDING" or row.executor_id != self.worker:
            raise TurnLost
        marks, details = marks_of(row), details_of(row)
        session_id, prompt = row.authenticated_user, row.input["args"][1]
        messages, stored_by, outcome = turns.conversation(session_id)
        if row.forked_from is not None:
            session_id, messages = self._forked(row, marks.base)
        elif stored_by == self.turn_id and marks.worker is None:
            # The end is stored, but its worker died before DBOS recorded it.
            self.outcome = outcome
            return None
        elif marks.worker is not None and marks.base is not None and stored_by == self.turn_id:
            # The turn was rewound after its end.
            messages = messages[: marks.base]
        self._attempt = marks.attempt + 1
        base = marks.base if marks.base is not None else len(messages)
        turns.mark(
            self.turn_id, attempt=self._attempt, worker=self.worker, last=self.worker, base=base
        )
        results, started, last = self._read_steps()
        for _ in range(last):
            self.context.run(DBOS.reserve_step)
        stop = turns.stop_of(marks)
        plan = marks.plan if results or started else None
        return ClaimedTurn(
            turn_id=self.turn_id,
            session_id=session_id,
            number=details.number,
            prompt=prompt,
            attempt=self._attempt,
            plan=plan,
            messages=messages,
            results=results,
            started=started,
            stop=stop,
            deaths=marks.deaths,
            since=details.since,
            deadline_at=details.deadline_at,
        )

    def _forked(self, row: Any, base: int | None) -> tuple[str, list[dict[str, JSON]]]:
        """Return a fork's own session, and the conversation before the original turn."""
        original = self.turns.find_row(row.forked_from, load_output=False)
        known = marks_of(original).base if original is not None else None
        length = known if known is not None else base
        messages, stored_by, _ = self.turns.conversation(self.turn_id)
        if stored_by is None:
            messages = self.turns.conversation(row.authenticated_user)[0][:length]
        return self.turn_id, messages

    def _read_steps(self) -> tuple[dict[str, JSON], Mapping[str, int], int]:
        results: dict[str, JSON] = {}
        started: dict[str, int] = {}
        last = 0
        for step in self.turns.client.list_workflow_steps(self.turn_id):
            last = max(last, step["function_id"])
            kind, _, rest = step["function_name"].partition(" ")
            if kind == "begin":
                started[rest] = started.get(rest, 0) + 1
            elif step["output"] is not None:
                results[step["function_name"]] = step["output"]
        return results, started, last

    # ── steps ──

    def reserve(self) -> StepReservation:
        """Reserve the next place in the order of steps."""
        return self.context.run(DBOS.reserve_step)

    async def begin_step(
        self, step: StepName, slot: StepReservation, plan: Plan | None
    ) -> StopRequest | None:
        """Record that a call starts, and the plan if the turn is new.

        Returns:
            A stop that was requested earlier, or None.
        """

        def begin() -> StopRequest | None:
            self._note_plan(plan)
            self._record(slot, f"begin {step.record}", self.worker)
            return self._read_stop()

        return await self._in_workflow(begin)

    async def finish_step(
        self, step: StepName, slot: StepReservation, result: object, plan: Plan | None
    ) -> None:
        """Record the result of a step, and the plan if the turn is new."""

        def finish() -> None:
            self._note_plan(plan)
            self._record(slot, step.record, result)

        await self._in_workflow(finish)

    def _note_plan(self, plan: Plan | None) -> None:
        if plan is not None:
            self.turns.database.insist(lambda: self.turns.mark(self.turn_id, plan=dict(plan)))

    @staticmethod
    def _record(slot: StepReservation, name: str, value: object) -> None:
        """Record a step.

        Raises:
            TurnLost: Another worker has already recorded a step in this slot.
        """
        if slot.run({"name": name}, lambda: value) is not value:
            raise TurnLost

    def _read_stop(self) -> StopRequest | None:
        row = self.turns.database.insist(
            lambda: self.turns.row(self.turn_id, load_input=False, load_output=False)
        )
        marks = marks_of(row)
        if (
            row.status != "PENDING"
            or row.executor_id != self.worker
            or marks.attempt != self._attempt
        ):
            raise TurnLost
        return self.turns.stop_of(marks)

    async def _in_workflow(self, work: Callable[[], T]) -> T:
        """Run a function in the context of the workflow.

        Once started, the function runs to completion unless the worker gives up on the database.
        DBOS waits for an unreachable database without a limit. The function retries the statements
        that it makes itself.

        Raises:
            EngineUnavailableError: The worker gave up on the database.
            TurnLost: Another worker has the turn.
        """

        def run() -> T:
            try:
                # Two threads can't enter the same context.
                return self.context.copy().run(self.turns.database.run, work)
            except LOST:
                raise TurnLost from None

        with anyio.CancelScope(shield=True) as scope:
            self.recording.add(scope)
            try:
                return await anyio.to_thread.run_sync(
                    run, limiter=self._threads, abandon_on_cancel=True
                )
            except DatabaseDown as error:
                raise self.turns.database.unavailable(error) from error
            finally:
                self.recording.discard(scope)
        raise EngineUnavailableError(
            f"the database {self.turns.database.name} was given up", engine=self.turns.database.name
        )

    # ── questions and events ──

    async def ask(self, turn: ClaimedTurn, question: Question) -> str | None:
        """Store a question unless it is already stored. Return its answer, or None."""

        def ask() -> str | None:
            options: dict[str, Any] = {
                "queue_name": QUESTIONS,
                "workflow_name": "amplifier-question",
            }
            options |= {"workflow_id": question_id(self.turn_id, question.question_id)}
            options |= {"authenticated_user": turn.session_id}
            self._read_stop()
            self.turns.client.enqueue(options, attrs.asdict(question))
            return self.read_answers([question.question_id]).get(question.question_id)

        return await self.turns.database(ask)

    def read_answers(self, names: list[str]) -> dict[str, str]:
        """Return the answers to some questions."""
        ids = {answer_id(self.turn_id, name): name for name in names}
        rows = self.turns.client.list_workflows(workflow_ids=list(ids), load_output=False)
        return {ids[row.workflow_id]: row.input["args"][0] for row in rows}

    async def withdraw(self, turn: ClaimedTurn, name: str) -> None:
        """Remove a question that nothing waits for, unless it was answered."""

        def withdraw() -> None:
            self._read_stop()
            if not self.read_answers([name]):
                self.turns.client.delete_workflows([question_id(self.turn_id, name)])

        await self.turns.database(withdraw)

    async def add_events(self, turn: ClaimedTurn, events: list[str]) -> None:
        """Store events for watchers."""
        await self.writer.write(turn.attempt, events)

    # ── the end ──

    async def finish(self, turn: ClaimedTurn, outcome: Outcome, events: list[str]) -> None:
        """End the turn, or hold it. The last events are stored before its outcome."""
        if events:
            await self.writer.write(turn.attempt, events)
        if outcome.state == "held":
            await self._in_workflow(lambda: self.turns.database.insist(lambda: self._hold(outcome)))
        else:
            self.outcome = await self._in_workflow(lambda: self._store(turn, outcome))

    def _hold(self, outcome: Outcome) -> None:
        turns = self.turns
        if self._read_stop() is not None:
            # The request arrived after the worker's last check. The next worker handles it.
            turns.mark(self.turn_id, worker=None)
            turns.client.resume_workflows([self.turn_id], queue_name=TURNS)
            return
        reason = {"error_type": outcome.error_type, "error": outcome.error}
        turns.mark(self.turn_id, worker=None, held=turns.seal(reason))
        turns.client.resume_workflows([self.turn_id], queue_name=WAITING)

    def _store(self, turn: ClaimedTurn, outcome: Outcome) -> dict[str, JSON]:
        turns = self.turns
        stop, state = self._read_stop(), outcome.state
        if state == "completed" and stop is not None and not stop.graceful:
            state = "stopped"
        end = {
            "state": state,
            "answer": outcome.answer,
            "error_type": outcome.error_type,
            "error": outcome.error,
            "ended": time.time(),
        }
        messages = None if outcome.messages is None else turns.seal(outcome.messages)
        values = {
            "session": turn.session_id,
            "turn": turn.turn_id,
            "outcome": turns.seal(end),
            "messages": messages,
        }

        def store() -> dict[str, JSON]:
            self.datasource.sql_session().execute(sa.text(_STORE_CONVERSATION), values)
            return end

        while self.datasource.run_tx_step({"name": "conversation"}, store) is not end:
            # This slot holds an end from another worker, or from before the turn was rewound.
            self._read_stop()
        return end
