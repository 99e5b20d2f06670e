"""Turns in a database: what clients ask for and what workers record, each call one transaction.

A worker that claims a turn raises the turn's attempt number. Everything a worker writes about a turn demands the number it was
given (`hold_turn`), so a worker that was taken for dead, and is not, cannot write any more; nor can it begin a tool call, which is
recorded first.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import orjson

from amplifier.contracts import Step

from .._engine import Question, TurnStatus, WatchedEvent
from .._errors import TurnLost
from .._storable import as_json, storable_key
from .._turn_rows import (
    MOST_ATTEMPTS,
    ClaimedTurn,
    Outcome,
    StopRequest,
    busy_error,
    check_answer,
    check_same_turn,
    forget_steps,
    hold_turn,
    insert_events,
    read_messages,
    read_status,
    read_stop_request,
    watched_events,
)
from ._database import DatabaseConflict, Run, Transactions

Enqueue = Callable[[Run, str], None]
"""Called inside the transaction that makes a turn ready for a worker, with the turn's id."""


class TurnStore:
    """The turns in one database."""

    def __init__(self, transactions: Transactions, enqueue: Enqueue) -> None:
        self._do = transactions
        self._enqueue = enqueue

    # ── for clients ──

    async def start(self, session_id: str, prompt: str, turn_id: str | None) -> str:
        """Store a turn and make it ready for a worker."""
        name = str(uuid.uuid4()) if turn_id is None else turn_id

        def work(run: Run) -> None:
            # One statement: on Postgres a second one may see a turn that another process has started since the first.
            found = run(
                "SELECT turn_id, session_id, prompt, state FROM amplifier_turns "
                "WHERE turn_id = :turn OR (session_id = :session AND is_open = 1)",
                turn=name,
                session=session_id,
            )
            for other, its_session, its_prompt, _ in found:
                if other == name:
                    check_same_turn(name, (session_id, prompt), (its_session, its_prompt))
                    return
            for other, _, _, state in found:
                raise busy_error(session_id, other, state)
            run(
                "INSERT INTO amplifier_turns (turn_id, session_id, number, prompt, state, is_open, attempt, "
                "queued_at, most_attempts) SELECT CAST(:turn AS TEXT), CAST(:session AS TEXT), COALESCE(MAX(number), 0) + 1, CAST(:prompt AS TEXT), "
                "'queued', 1, 0, :now, :more FROM amplifier_turns WHERE session_id = :session RETURNING turn_id",
                now=time.time(),
                more=MOST_ATTEMPTS,
                turn=name,
                session=session_id,
                prompt=prompt,
            )
            self._enqueue(run, name)

        try:
            await self._do(work)
        except DatabaseConflict:
            await self._do(work)  # someone else was faster by a moment; now that is seen
        return name

    async def status(self, turn_id: str) -> TurnStatus:
        """What a turn does now."""

        def work(run: Run) -> TurnStatus:
            return read_status(run, turn_id)

        return await self._do(work, only_reads=True)

    async def events_after(self, turn_id: str, position: int) -> tuple[list[WatchedEvent], TurnStatus]:
        """Events behind a position, and what the turn did when there were no more."""

        def work(run: Run) -> tuple[list[WatchedEvent], TurnStatus]:
            status = read_status(run, turn_id)
            rows = run(
                "SELECT last_position, attempt, events FROM amplifier_events "
                "WHERE turn_id = :turn AND last_position > :position ORDER BY last_position LIMIT 100",
                turn=turn_id,
                position=position,
            )
            return watched_events(rows, position), status

        return await self._do(work, only_reads=True)

    async def answer(self, turn_id: str, question_id: str, option: str) -> None:
        """Store the answer to a question."""

        def work(run: Run) -> None:
            status = read_status(run, turn_id)
            known = "SELECT answer FROM amplifier_questions WHERE turn_id = :turn AND question_id = :question"
            answered = run(known, turn=turn_id, question=question_id)
            if answered == [(option,)]:
                return  # the same answer again, for example because the connection was lost meanwhile
            check_answer(status, question_id, option)
            stored = run(
                "UPDATE amplifier_questions SET answer = :answer "
                "WHERE turn_id = :turn AND question_id = :question AND answer IS NULL RETURNING 1",
                turn=turn_id,
                question=question_id,
                answer=option,
            )
            if not stored:  # on Postgres: someone else was faster by a moment; now that is seen
                work(run)

        await self._do(work)

    async def request_stop(self, turn_id: str, graceful: bool, reason: str | None) -> None:
        """Note that a turn is to end.

        One that has not begun ends now. One that has goes to a worker, which puts what is known of it into the conversation.
        """
        wanted = as_json({"graceful": graceful, "reason": reason})

        def work(run: Run) -> None:
            status = read_status(run, turn_id)
            if status.is_final:
                return
            if status.attempt == 0:
                change = "state = 'stopped', is_open = 0"
            elif status.state == "held":
                change = "state = 'queued', error_type = NULL, error = NULL"
            else:
                change = "state = state"
            run(
                f"UPDATE amplifier_turns SET stop = :stop, {change} WHERE turn_id = :turn RETURNING 1",
                turn=turn_id,
                stop=wanted,
            )
            if status.state == "held":
                self._enqueue(run, turn_id)

        await self._do(work)

    async def resume(self, turn_id: str) -> None:
        """Let a held turn go on with any plan."""

        def work(run: Run) -> None:
            if read_status(run, turn_id).state == "held":
                run(
                    "UPDATE amplifier_turns SET state = 'queued', plan = NULL, error_type = NULL, error = NULL, "
                    "most_attempts = attempt + :more WHERE turn_id = :turn RETURNING 1",
                    turn=turn_id,
                    more=MOST_ATTEMPTS,
                )
                self._enqueue(run, turn_id)

        await self._do(work)

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session."""

        def work(run: Run) -> list[dict[str, Any]]:
            return read_messages(run, session_id)

        return await self._do(work, only_reads=True)

    # ── for workers ──

    async def claim(
        self, turn_id: str, worker: str, is_allowed: Callable[[Run], bool] = lambda run: True
    ) -> ClaimedTurn | None:
        """Take one turn that an engine has given to a worker; None if it has ended or is held.

        Args:
            turn_id: The turn; it may be running elsewhere, and is lost there then.
            worker: Who takes it.
            is_allowed: Asked in the same transaction: the engine may have given the turn to another worker since.

        Raises:
            TurnLost: It is not allowed.
        """

        def work(run: Run) -> ClaimedTurn | None:
            if not is_allowed(run):
                raise TurnLost
            return self._claim(run, turn_id, worker)

        return await self._do(work)

    async def claim_next(self, worker: str) -> ClaimedTurn | None:
        """Take a turn that waits for a worker; None if there is none."""

        def work(run: Run) -> ClaimedTurn | None:
            waiting = run(
                "SELECT turn_id FROM amplifier_turns WHERE state = 'queued' AND is_open = 1 ORDER BY queued_at LIMIT 1"
            )
            return self._claim(run, waiting[0][0], worker) if waiting else None

        return await self._do(work)

    @staticmethod
    def _claim(run: Run, turn_id: str, worker: str) -> ClaimedTurn | None:
        claimed = run(
            "UPDATE amplifier_turns SET state = 'running', worker = :worker, attempt = attempt + 1 "
            "WHERE turn_id = :turn AND is_open = 1 AND state IN ('queued', 'running') "
            "RETURNING session_id, number, prompt, attempt, plan, stop, most_attempts",
            turn=turn_id,
            worker=worker,
        )
        if not claimed:
            return None
        session_id, number, prompt, attempt, plan, stop, most_attempts = claimed[0]
        steps = run("SELECT step, what, result FROM amplifier_steps WHERE turn_id = :turn", turn=turn_id)
        [(last,)] = run(
            "SELECT COALESCE(MAX(last_position), 0) FROM amplifier_events WHERE turn_id = :turn", turn=turn_id
        )
        return ClaimedTurn(
            turn_id=turn_id,
            session_id=session_id,
            number=number,
            prompt=prompt,
            attempt=attempt,
            plan=None if plan is None else orjson.loads(plan),
            messages=read_messages(run, session_id),
            results={step: orjson.loads(result) for step, what, result in steps if what == "finished"},
            started=frozenset(step for step, what, _ in steps if what == "started"),
            last_position=last,
            stop=read_stop_request(stop),
            most_attempts=most_attempts,
        )

    async def note_plan(self, turn: ClaimedTurn, plan: Mapping[str, str]) -> None:
        """Record the plan that a turn begins with."""

        def work(run: Run) -> None:
            hold_turn(run, turn)
            run(
                "UPDATE amplifier_turns SET plan = :plan WHERE turn_id = :turn RETURNING 1",
                turn=turn.turn_id,
                plan=as_json(dict(plan)),
            )

        await self._do(work)

    async def begin_step(self, turn: ClaimedTurn, step: Step) -> None:
        """See `AttemptStore.begin_step`; a model call can always be made again, so its beginning need not be known."""
        if step.kind == "tool":
            await self._record(turn, storable_key(step.key), "started", None)

    async def finish_step(self, turn: ClaimedTurn, step: Step, result: str) -> None:
        """See `AttemptStore.finish_step`."""
        await self._record(turn, storable_key(step.key), "finished", result)

    async def _record(self, turn: ClaimedTurn, step: str, what: str, result: str | None) -> None:
        def work(run: Run) -> None:
            hold_turn(run, turn)
            run(
                "INSERT INTO amplifier_steps (turn_id, step, what, result) VALUES (:turn, :step, :what, :result) "
                "ON CONFLICT (turn_id, step, what) DO NOTHING RETURNING 1",
                turn=turn.turn_id,
                step=step,
                what=what,
                result=result,
            )

        await self._do(work)

    async def ask(self, turn: ClaimedTurn, question: Question) -> str | None:
        """Store a question, if it is not there; returns the answer, if that is."""
        details = as_json(attrs.asdict(question))

        def work(run: Run) -> str | None:
            hold_turn(run, turn)
            run(
                "INSERT INTO amplifier_questions (turn_id, question_id, details) VALUES (:turn, :question, :details) "
                "ON CONFLICT (turn_id, question_id) DO NOTHING RETURNING 1",
                turn=turn.turn_id,
                question=question.question_id,
                details=details,
            )
            [(answer,)] = run(
                "SELECT answer FROM amplifier_questions WHERE turn_id = :turn AND question_id = :question",
                turn=turn.turn_id,
                question=question.question_id,
            )
            return None if answer is None else str(answer)

        return await self._do(work)

    async def withdraw(self, turn: ClaimedTurn, question_id: str) -> None:
        """Remove a question that no one waits for any more, unless it was answered."""

        def work(run: Run) -> None:
            hold_turn(run, turn)
            run(
                "DELETE FROM amplifier_questions WHERE turn_id = :turn AND question_id = :question AND answer IS NULL "
                "RETURNING 1",
                turn=turn.turn_id,
                question=question_id,
            )

        await self._do(work)

    async def news(
        self, worker: str, asking: Iterable[str]
    ) -> tuple[dict[str, tuple[int, StopRequest | None]], dict[tuple[str, str], str]]:
        """What workers have to react to.

        Args:
            worker: Whose turns.
            asking: Its turns that wait for answers.

        Returns:
            Attempt and wanted stop of each of its running turns, and answers by turn and question id.
        """
        waiting = list(asking)

        def work(run: Run) -> tuple[dict[str, tuple[int, StopRequest | None]], dict[tuple[str, str], str]]:
            rows = run(
                "SELECT turn_id, attempt, stop FROM amplifier_turns "
                "WHERE worker = :worker AND state = 'running' AND is_open = 1",
                worker=worker,
            )
            answers: dict[tuple[str, str], str] = {}
            for turn_id in waiting:
                answered = (
                    "SELECT question_id, answer FROM amplifier_questions WHERE turn_id = :turn AND answer IS NOT NULL"
                )
                answers |= {(turn_id, question): answer for question, answer in run(answered, turn=turn_id)}
            return {turn_id: (attempt, read_stop_request(stop)) for turn_id, attempt, stop in rows}, answers

        return await self._do(work, only_reads=True)

    async def add_events(self, turn: ClaimedTurn, last_position: int, events: list[tuple[str, Any]]) -> None:
        """Store events for watchers; the last one has this position."""

        def work(run: Run) -> None:
            hold_turn(run, turn)
            insert_events(run, turn, last_position, events)

        await self._do(work)

    async def finish(
        self, turn: ClaimedTurn, outcome: Outcome, last_position: int, events: list[tuple[str, Any]]
    ) -> None:
        """End a turn, or hold it: its outcome, the conversation and the last events at once."""

        def work(run: Run) -> None:
            is_open = int(outcome.state == "held")
            ended = run(
                "UPDATE amplifier_turns SET state = :state, is_open = :is_open, answer = :answer, error_type = :error_type, "
                "error = :error WHERE turn_id = :turn AND attempt = :attempt AND is_open = 1 AND state = 'running' "
                "RETURNING 1",
                turn=turn.turn_id,
                attempt=turn.attempt,
                is_open=is_open,
                state=outcome.state,
                answer=outcome.answer,
                error_type=outcome.error_type,
                error=outcome.error,
            )
            if not ended:
                same = "SELECT 1 FROM amplifier_turns WHERE turn_id = :turn AND attempt = :attempt AND state = :state"
                if run(same, turn=turn.turn_id, attempt=turn.attempt, state=outcome.state):
                    return  # the connection was lost while this was committed
                raise TurnLost
            insert_events(run, turn, last_position, events)
            if outcome.messages is not None:
                run(
                    "INSERT INTO amplifier_conversations (session_id, messages) VALUES (:session, :messages) "
                    "ON CONFLICT (session_id) DO UPDATE SET messages = excluded.messages RETURNING 1",
                    session=turn.session_id,
                    messages=as_json(outcome.messages),
                )
            if not is_open:
                forget_steps(run, turn.turn_id)

        await self._do(work)

    # ── workers among each other ──

    async def beat(self, worker: str) -> dict[str, int]:
        """Show that a worker lives; returns the beats of all workers. A worker that has left has -1."""

        def work(run: Run) -> dict[str, int]:
            run(
                "INSERT INTO amplifier_workers (worker, beats) VALUES (:worker, 1) "
                "ON CONFLICT (worker) DO UPDATE SET beats = amplifier_workers.beats + 1 RETURNING 1",
                worker=worker,
            )
            return {name: int(beats) for name, beats in run("SELECT worker, beats FROM amplifier_workers")}

        return await self._do(work)

    async def leave(self, worker: str, patience: float) -> None:
        """Note that a worker has left, so that others take its turns over at once."""

        def work(run: Run) -> None:
            run("UPDATE amplifier_workers SET beats = -1 WHERE worker = :worker RETURNING 1", worker=worker)

        await self._do(work, patience=patience)

    async def requeue_turns_of(self, worker: str) -> list[str]:
        """Make the turns of a worker that has died ready for others, and forget the worker."""

        def work(run: Run) -> list[str]:
            rows = run(
                "UPDATE amplifier_turns SET state = 'queued' "
                "WHERE worker = :worker AND state = 'running' AND is_open = 1 RETURNING turn_id",
                worker=worker,
            )
            self._forget_worker(run, worker)
            return [str(turn_id) for (turn_id,) in rows]

        return await self._do(work)

    async def forget_worker(self, worker: str) -> None:
        """Forget a worker whose turns its engine has made ready for others."""
        await self._do(lambda run: self._forget_worker(run, worker))

    @staticmethod
    def _forget_worker(run: Run, worker: str) -> None:
        run("DELETE FROM amplifier_workers WHERE worker = :worker RETURNING 1", worker=worker)
