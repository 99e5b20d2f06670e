"""Turns in a database: what clients ask for and what workers record, each call one transaction.

A worker that claims a turn raises the turn's attempt number. Everything a worker writes about a turn demands the number it was
given, and that the turn runs (`hold_turn`), so a worker that was taken for dead, and is not, cannot write any more; nor can it begin a tool call, which is
recorded first.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
import orjson

from amplifier.contracts import Step

from .._engine import Question, TurnStatus, WatchedEvent
from .._errors import TurnLost
from .._storable import as_json, storable_key
from .._turn_rows import (
    LONGEST_PAUSE,
    ClaimedTurn,
    Outcome,
    StopRequest,
    busy_error,
    check_answer,
    check_same_turn,
    forget_steps,
    hold_turn,
    insert_events,
    move,
    read_messages,
    read_status,
    read_stop_request,
    watched_events,
)
from ._database import DatabaseConflict, DatabaseDown, Row, Run, Transactions

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
                "queued_at, deaths) SELECT CAST(:turn AS TEXT), CAST(:session AS TEXT), COALESCE(MAX(number), 0) + 1, CAST(:prompt AS TEXT), "
                "'queued', 1, 0, :now, 0 FROM amplifier_turns WHERE session_id = :session RETURNING turn_id",
                now=time.time(),
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
            state, attempt = status.state, status.attempt
            if status.is_final:
                return
            if not move(run, turn_id, state, attempt):  # locks it, so that no other stop comes between
                work(run)
                return
            [(stored,)] = run("SELECT stop FROM amplifier_turns WHERE turn_id = :turn", turn=turn_id)
            known = read_stop_request(stored)
            if graceful and known is not None and not known.graceful:
                return  # an immediate stop that was acknowledged stays one
            if state == "held":
                self._requeue(run, turn_id, state, attempt, stop=wanted)
            else:
                ended = {"state": "stopped"} if attempt == 0 else {}
                move(run, turn_id, state, attempt, stop=wanted, **ended)

        await self._do(work)

    async def resume(self, turn_id: str) -> None:
        """Let a held turn go on with any plan."""

        def work(run: Run) -> None:
            status = read_status(run, turn_id)
            if status.state == "held" and not self._requeue(run, turn_id, "held", status.attempt, plan=None):
                work(run)

        await self._do(work)

    async def release(self, turn_id: str) -> None:
        """Take a turn away from the worker that runs it."""

        def work(run: Run) -> None:
            status = read_status(run, turn_id)
            if status.state == "running" and not self._requeue(run, turn_id, "running", status.attempt):
                work(run)

        await self._do(work)

    def _requeue(self, run: Run, turn_id: str, state: str, attempt: int, /, **changes: Any) -> bool:
        """Make a turn ready for another worker; false if it is no longer as it was read."""
        changes = {"state": "queued", "queued_at": time.time(), "error_type": None, "error": None, **changes}
        is_queued = move(run, turn_id, state, attempt, **changes)
        if is_queued:
            self._enqueue(run, turn_id)
        return is_queued

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session."""

        def work(run: Run) -> list[dict[str, Any]]:
            return read_messages(run, session_id)

        return await self._do(work, only_reads=True)

    # ── for workers ──

    async def next_queued(self, in_hand: Collection[str]) -> str | None:
        """The turn that has waited longest and is due, besides those in hand; None if there is none."""

        def work(run: Run) -> str | None:
            waiting = run(
                "SELECT turn_id FROM amplifier_turns WHERE state = 'queued' AND is_open = 1 "
                "AND (deaths = 0 OR queued_at NOT BETWEEN :now AND :latest) ORDER BY queued_at LIMIT :many",
                now=time.time(),
                latest=time.time() + LONGEST_PAUSE,  # one that is due later than that was queued with another clock
                many=len(in_hand) + 1,
            )
            return next((str(turn_id) for (turn_id,) in waiting if turn_id not in in_hand), None)

        return await self._do(work, only_reads=True)

    async def queued(self, turn_id: str) -> tuple[int, float] | None:
        """How many workers have died while they ran a turn that waits, and when it is due; None if it does not wait."""

        def work(run: Run) -> tuple[int, float] | None:
            rows = run(
                "SELECT deaths, queued_at FROM amplifier_turns WHERE turn_id = :turn AND state = 'queued'", turn=turn_id
            )
            return (int(rows[0][0]), float(rows[0][1])) if rows else None

        return await self._do(work, only_reads=True)

    async def claim(self, turn_id: str, worker: str) -> ClaimedTurn | None:
        """Take a turn that waits; None if it does not wait any more.

        The worker is noted as alive in the same transaction: one that was forgotten while it was suspended is known again, so
        that others notice its death.
        """
        mine: tuple[Any, ...] | None = None

        def work(run: Run) -> ClaimedTurn | None:
            nonlocal mine
            _note_life(run, worker)
            [found] = run("SELECT state, attempt, worker FROM amplifier_turns WHERE turn_id = :turn", turn=turn_id)
            if found != mine:  # else it was committed, and the connection was lost meanwhile
                state, attempt, _ = found
                claim = {"state": "running", "attempt": attempt + 1, "worker": worker}
                if state != "queued" or not move(run, turn_id, state, attempt, **claim):
                    return None
                mine = tuple(claim.values())
            return _read_claimed(run, turn_id)

        return await self._do(work)

    async def note_plan(self, turn: ClaimedTurn, plan: Mapping[str, str]) -> None:
        """Record the plan that a turn begins with."""

        def work(run: Run) -> None:
            hold_turn(run, turn, plan=as_json(dict(plan)))

        await self._do(work)

    async def begin_step(self, turn: ClaimedTurn, step: Step) -> StopRequest | None:
        """See `AttemptStore.begin_step`; a model call can always be made again, so its beginning need not be known."""
        if step.kind != "tool":
            return None
        return await self._record(turn, step, f"started {turn.attempt}", None)

    async def finish_step(self, turn: ClaimedTurn, step: Step, result: str) -> StopRequest | None:
        """See `AttemptStore.finish_step`."""
        return await self._record(turn, step, "finished", result)

    async def _record(self, turn: ClaimedTurn, step: Step, what: str, result: str | None) -> StopRequest | None:
        def work(run: Run) -> StopRequest | None:
            stop = hold_turn(run, turn)
            if result is not None or stop is None or stop.graceful:  # a call does not begin after an immediate stop
                run(
                    "INSERT INTO amplifier_steps (turn_id, step, what, result) VALUES (:turn, :step, :what, :result) "
                    "ON CONFLICT (turn_id, step, what) DO NOTHING RETURNING 1",
                    turn=turn.turn_id,
                    step=storable_key(step.key),
                    what=what,
                    result=result,
                )
            return stop

        return await self._do(work)

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
            state: str = outcome.state
            try:
                stop = hold_turn(run, turn)
            except TurnLost:
                known = run("SELECT attempt, state FROM amplifier_turns WHERE turn_id = :turn", turn=turn.turn_id)
                if known and known[0][0] == turn.attempt and known[0][1] in (state, "stopped"):
                    return  # the connection was lost while this was committed
                raise
            if state == "held" and stop is not None:  # it came after the worker looked; the next one obeys it
                self._requeue(run, turn.turn_id, "running", turn.attempt)
                return
            if state == "completed" and stop is not None and not stop.graceful:
                state = "stopped"
            fields = {"answer": outcome.answer, "error_type": outcome.error_type, "error": outcome.error}
            move(run, turn.turn_id, "running", turn.attempt, state=state, **fields)
            insert_events(run, turn, last_position, events)
            if outcome.messages is not None:
                run(
                    "INSERT INTO amplifier_conversations (session_id, messages) VALUES (:session, :messages) "
                    "ON CONFLICT (session_id) DO UPDATE SET messages = excluded.messages RETURNING 1",
                    session=turn.session_id,
                    messages=as_json(outcome.messages),
                )
            if state != "held":
                forget_steps(run, turn.turn_id)

        await self._do(work)

    # ── workers among each other; plain functions block, for a thread that does not depend on the event loop ──

    async def register(self, worker: str) -> None:
        """Show that a worker lives, before it gets turns."""
        await self._do(lambda run: _note_life(run, worker))

    def check_patience(self, error: DatabaseDown, since: float) -> None:
        """Go on while the database has not been away for too long.

        Raises:
            EngineUnavailableError: It has.
        """
        if time.monotonic() - since >= self._do.patience:
            raise self._do.unavailable(error) from error

    def beat(self, worker: str) -> dict[str, int]:
        """Show that a worker lives; returns the beats of all workers."""

        def work(run: Run) -> dict[str, int]:
            _note_life(run, worker)
            return {name: int(beats) for name, beats in run("SELECT worker, beats FROM amplifier_workers")}

        return self._do.once(work)

    def forget_worker(self, worker: str, beats: int) -> bool:
        """Forget a worker that has died, unless it has beaten since; its turns are orphans then."""
        forget = "DELETE FROM amplifier_workers WHERE worker = :worker AND beats = :beats RETURNING 1"
        return bool(self._do.once(lambda run: run(forget, worker=worker, beats=beats)))

    def requeue_orphans(self, pause_after: Callable[[int], float]) -> None:
        """Make turns ready for others that run under no living worker.

        Args:
            pause_after: Seconds to wait before a turn that so many workers have died with.
        """

        def work(run: Run) -> None:
            orphans = run(
                "SELECT turn_id, attempt, deaths FROM amplifier_turns WHERE is_open = 1 AND state = 'running' AND NOT EXISTS "
                "(SELECT 1 FROM amplifier_workers WHERE amplifier_workers.worker = amplifier_turns.worker)"
            )
            for turn_id, attempt, deaths in orphans:
                due = time.time() + pause_after(deaths + 1)
                self._requeue(run, turn_id, "running", attempt, deaths=deaths + 1, queued_at=due)

        self._do.once(work)

    def read(self, statement: str, **values: Any) -> list[Row]:
        """Run a statement that only reads."""
        return self._do.once(lambda run: run(statement, **values), only_reads=True)

    async def leave(self, worker: str, patience: float) -> None:
        """Forget a worker that ends in good order, and make its turns ready for others at once."""

        def work(run: Run) -> None:
            mine = "SELECT turn_id, attempt FROM amplifier_turns WHERE is_open = 1 AND state = 'running' AND worker = :worker"
            for turn_id, attempt in run(mine, worker=worker):
                self._requeue(run, turn_id, "running", attempt)
            run("DELETE FROM amplifier_workers WHERE worker = :worker RETURNING 1", worker=worker)

        await self._do(work, patience=patience)


def _note_life(run: Run, worker: str) -> None:
    run(
        "INSERT INTO amplifier_workers (worker, beats) VALUES (:worker, 1) "
        "ON CONFLICT (worker) DO UPDATE SET beats = amplifier_workers.beats + 1 RETURNING 1",
        worker=worker,
    )


def _read_claimed(run: Run, turn_id: str) -> ClaimedTurn:
    [(session_id, number, prompt, attempt, plan, stop, deaths)] = run(
        "SELECT session_id, number, prompt, attempt, plan, stop, deaths FROM amplifier_turns WHERE turn_id = :turn",
        turn=turn_id,
    )
    steps = run("SELECT step, what, result FROM amplifier_steps WHERE turn_id = :turn", turn=turn_id)
    [(last,)] = run("SELECT COALESCE(MAX(last_position), 0) FROM amplifier_events WHERE turn_id = :turn", turn=turn_id)
    return ClaimedTurn(
        turn_id=turn_id,
        session_id=session_id,
        number=number,
        prompt=prompt,
        attempt=attempt,
        plan=None if plan is None else orjson.loads(plan),
        messages=read_messages(run, session_id),
        results={step: orjson.loads(result) for step, what, result in steps if what == "finished"},
        started=Counter(step for step, what, _ in steps if what.startswith("started")),
        last_position=last,
        stop=read_stop_request(stop),
        deaths=deaths,
    )
