"""Turns in a database: what clients ask for and what workers record, each call one transaction.

A worker that claims a turn raises the turn's attempt number. Everything a worker writes about a turn demands the number it was
given, and that the turn runs (`hold_turn`), so a worker that was taken for dead, and is not, cannot write any more; nor can it begin a tool call, which is
recorded first.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import orjson

from amplifier.live import Question

from ._database import Database, DatabaseDown, Row, Run, delete, insert, select
from ._errors import TurnConflictError, TurnLost, busy_error, check_answer, check_same_turn, unknown_turn_error
from ._reporting import pause_after
from ._suspects import LONGEST_PAUSE
from ._values import (
    OPEN,
    PLAN_CHANGED,
    WAITS,
    ClaimedTurn,
    Outcome,
    Plan,
    Schedule,
    StepName,
    StopRequest,
    TurnCounts,
    TurnPolicy,
    TurnStatus,
    WatchedEvent,
    as_json,
    read_question,
    read_stop_request,
    storable_key,
    watched_events,
)

P = ParamSpec("P")
T = TypeVar("T")

_CLAIMED = (
    "session_id, number, prompt, attempt, plan, stop, deaths, started_at, deadline_at, (SELECT messages FROM amplifier_conversations "
    "WHERE amplifier_conversations.session_id = amplifier_turns.session_id)"
)

Enqueue = Callable[[Run, str, int, float | None], None]
"""Called inside the transaction that makes a turn ready for a worker: with the turn's id, its priority, and when it is due."""
NoteStep = Callable[[Run, str, StepName, str], None]
"""Called inside the transaction that records the result of a step, with the turn's id and the result."""


def _transaction(
    *, only_reads: bool = False
) -> Callable[
    [Callable[Concatenate[TurnStore, Run, P], T]], Callable[Concatenate[TurnStore, P], Coroutine[Any, Any, T]]
]:
    """Make a function of a store and a transaction an async method that does it in a transaction of its own."""

    def decorate(
        work: Callable[Concatenate[TurnStore, Run, P], T],
    ) -> Callable[Concatenate[TurnStore, P], Coroutine[Any, Any, T]]:
        @wraps(work)
        async def method(self: TurnStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
            def transact(run: Run) -> T:
                return work(self, run, *args, **kwargs)

            transact.__qualname__ = work.__qualname__  # for those who count or watch transactions
            return await self._do(transact, only_reads=only_reads)

        return method

    return decorate


class TurnStore:
    """The turns in one database.

    Args:
        database: Where.
        enqueue: For an engine that has a queue.
        note_step: For an engine that shows steps.
    """

    def __init__(
        self,
        database: Database,
        enqueue: Enqueue = lambda run, turn_id, priority, due_at: None,
        note_step: NoteStep = lambda run, turn_id, step, result: None,
    ) -> None:
        self._do = database
        self._enqueue = enqueue
        self._note_step = note_step

    # ── for clients ──

    @_transaction()
    def start(self, run: Run, session_id: str, prompt: str, turn_id: str, queue: bool, policy: TurnPolicy) -> None:
        """Store a turn and make it ready for a worker, or, with `queue`, let it wait behind the open one of its session."""
        self._start(run, session_id, prompt, turn_id, queue, policy)

    def _start(self, run: Run, session_id: str, prompt: str, name: str, queue: bool, policy: TurnPolicy) -> None:
        def add(is_open: int) -> bool:
            """Unless the id, or the place of the session's open turn, is taken; then that is seen by the next statement."""
            added = run(
                "INSERT INTO amplifier_turns (turn_id, session_id, number, prompt, state, is_open, attempt, queued_at, started_at, "
                "deaths, priority, due_at, deadline_at) SELECT CAST(:turn AS TEXT), CAST(:session AS TEXT), COALESCE(MAX(number), 0) + 1, "
                "CAST(:prompt AS TEXT), 'queued', CAST(:open AS INTEGER), 0, :now, :now, 0, CAST(:priority AS INTEGER), "
                "CAST(:due_at AS DOUBLE PRECISION), CAST(:deadline_at AS DOUBLE PRECISION) FROM amplifier_turns "
                "WHERE session_id = :session ON CONFLICT DO NOTHING RETURNING 1",
                now=time.time(),
                turn=name,
                session=session_id,
                prompt=prompt,
                open=is_open,
                **attrs.asdict(policy),
            )
            if added and policy.notify is not None:
                insert(run, "amplifier_notices", turn_id=name, url=policy.notify, tries=0, next_at=0.0)
            return bool(added)

        while not add(1):
            # One statement: on Postgres a second one may see a turn that another process has started since the first.
            found = run(
                "SELECT turn_id, session_id, prompt, state, attempt FROM amplifier_turns "
                "WHERE turn_id = :turn OR (session_id = :session AND is_open = 1)",
                turn=name,
                session=session_id,
            )
            for other, its_session, its_prompt, _, _ in found:
                if other == name:
                    check_same_turn(name, (session_id, prompt), (its_session, its_prompt))
                    return
            for other, _, _, state, attempt in found:
                if not queue:
                    raise busy_error(session_id, other, state)
                # Locks it, so that it does not end before this one waits.
                if move(run, other, state, attempt) and add(WAITS):
                    return
        self._enqueue(run, name, policy.priority, policy.due_at)

    @_transaction(only_reads=True)
    def status(self, run: Run, turn_id: str) -> TurnStatus:
        """What a turn does now."""
        return read_status(run, turn_id)

    @_transaction(only_reads=True)
    def find(
        self, run: Run, state: str | None, session: str | None, since: float | None, limit: int
    ) -> list[TurnStatus]:
        """Turns, the one that was started last first."""
        wanted = {"state = :state": state, "session_id = :session": session, "started_at >= :since": since}
        conditions = " AND ".join(text for text, value in wanted.items() if value is not None) or "1 = 1"
        return read_turns(
            run,
            f"{conditions} ORDER BY started_at DESC, number DESC LIMIT :limit",
            limit=limit,
            state=state,
            session=session,
            since=since,
        )

    @_transaction(only_reads=True)
    def counts(self, run: Run, *, only_open: bool = False) -> TurnCounts:
        """How many turns there are."""
        found = run(
            "SELECT state, COUNT(*), MIN(started_at), SUM(attempt), SUM(deaths) FROM amplifier_turns "
            f"WHERE is_open > 0{'' if only_open else ' OR is_open = 0'} GROUP BY state"
        )
        opened = [row for row in found if row[0] in OPEN]
        return TurnCounts(
            states={state: int(count) for state, count, *_ in found},
            oldest=max((time.time() - float(began) for _, _, began, _, _ in opened), default=0.0),
            attempts=sum(int(attempts) for _, _, _, attempts, _ in opened),
            takeovers=sum(int(deaths) for *_, deaths in opened),
        )

    @_transaction(only_reads=True)
    def events_after(self, run: Run, turn_id: str, position: int) -> tuple[list[WatchedEvent], TurnStatus]:
        """Events behind a position, and what the turn did when there were no more."""
        status = read_status(run, turn_id)
        rows = run(
            "SELECT last_position, attempt, events FROM amplifier_events "
            "WHERE turn_id = :turn AND last_position > :position ORDER BY last_position LIMIT 100",
            turn=turn_id,
            position=position,
        )
        return watched_events(rows, position), status

    @_transaction()
    def answer(self, run: Run, turn_id: str, question_id: str, option: str) -> None:
        """Store the answer to a question."""
        while True:
            status = read_status(run, turn_id)
            known = select(run, "answer", "amplifier_questions", turn_id=turn_id, question_id=question_id)
            if known == [(option,)] and not status.is_final:
                return  # the same answer again, for example because the connection was lost meanwhile
            check_answer(status, question_id, option)
            stored = run(
                "UPDATE amplifier_questions SET answer = :answer "
                "WHERE turn_id = :turn AND question_id = :question AND answer IS NULL RETURNING 1",
                turn=turn_id,
                question=question_id,
                answer=option,
            )
            if stored:  # else, on Postgres, someone else was faster by a moment; now that is seen
                return

    @_transaction()
    def request_stop(self, run: Run, turn_id: str, graceful: bool, reason: str | None) -> None:
        """Note that a turn is to end.

        One that has not begun ends now. One that has goes to a worker, which puts what is known of it into the conversation.
        """
        wanted = as_json({"graceful": graceful, "reason": reason})
        while not (status := read_status(run, turn_id)).is_final:
            state, attempt = status.state, status.attempt
            moved = move(run, turn_id, state, attempt)  # locks it, so that no other stop comes between
            if not moved:
                continue
            [(_, _, stored, is_open)] = moved
            known = read_stop_request(stored)
            if graceful and known is not None and not known.graceful:
                return  # an immediate stop that was acknowledged stays one
            if state == "held":
                self._requeue(run, turn_id, state, attempt, stop=wanted)
            elif attempt == 0:
                move(run, turn_id, state, attempt, stop=wanted, state="stopped")
                if is_open != WAITS:
                    self._begin_next(run, status.session_id)
            else:
                move(run, turn_id, state, attempt, stop=wanted)
            return

    @_transaction()
    def resume(self, run: Run, turn_id: str) -> None:
        """Let a held turn go on with any plan."""
        while (status := read_status(run, turn_id)).state == "held":
            if self._requeue(run, turn_id, "held", status.attempt, plan=None):
                return

    @_transaction()
    def release(self, run: Run, turn_id: str) -> None:
        """Take a turn away from the worker that runs it."""
        while (status := read_status(run, turn_id)).state == "running":
            if self._requeue(run, turn_id, "running", status.attempt):
                return

    def _requeue(self, run: Run, turn_id: str, state: str, attempt: int, /, **changes: Any) -> bool:
        """Make a turn ready for another worker; false if it is no longer as it was read."""
        changes = {"state": "queued", "queued_at": time.time(), "error_type": None, "error": None, **changes}
        moved = move(run, turn_id, state, attempt, **changes)
        for priority, due_at, *_ in moved:
            self._enqueue(run, turn_id, priority, due_at)
        return bool(moved)

    def _begin_next(self, run: Run, session_id: str) -> None:
        """Make the turn ready for a worker that waits behind one that has just ended."""
        first = "SELECT turn_id FROM amplifier_turns WHERE session_id = :session AND is_open = :waits ORDER BY number LIMIT 1"
        while waiting := run(first, session=session_id, waits=WAITS):
            [(turn_id,)] = waiting
            for priority, due_at, *_ in move(run, turn_id, "queued", 0, is_open=1, queued_at=time.time()):
                self._enqueue(run, turn_id, priority, due_at)
                return  # else it was stopped meanwhile

    @_transaction(only_reads=True)
    def messages(self, run: Run, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session."""
        return read_messages(run, session_id)

    @_transaction()
    def forget(self, run: Run, before: float) -> int:
        """Forget turns that ended before a moment, with what else there is of them."""
        old = "is_open = 0 AND ended_at < :before"
        for table in ("amplifier_events", "amplifier_questions", "amplifier_notices"):
            run(
                f"DELETE FROM {table} WHERE turn_id IN (SELECT turn_id FROM amplifier_turns WHERE {old}) RETURNING 1",
                before=before,
            )
        return len(run(f"DELETE FROM amplifier_turns WHERE {old} RETURNING 1", before=before))

    @_transaction()
    def schedule(self, run: Run, wanted: Schedule) -> None:
        """Store a schedule in place of one of this name."""
        delete(run, "amplifier_schedules", name=wanted.name)
        insert(run, "amplifier_schedules", **attrs.asdict(wanted))

    @_transaction(only_reads=True)
    def schedules(self, run: Run) -> list[Schedule]:
        """All schedules."""
        return _read_schedules(run, math.inf)

    @_transaction()
    def unschedule(self, run: Run, name: str) -> bool:
        """Remove a schedule."""
        return delete(run, "amplifier_schedules", name=name)

    # ── for workers ──

    @_transaction(only_reads=True)
    def next_queued(self, run: Run, in_hand: Collection[str]) -> str | None:
        """The turn that has waited longest and is due, besides those in hand; None if there is none."""
        waiting = run(
            "SELECT turn_id FROM amplifier_turns WHERE state = 'queued' AND is_open = 1 "
            "AND (deaths = 0 OR queued_at NOT BETWEEN :now AND :latest) AND (due_at IS NULL OR due_at <= :now) "
            "ORDER BY priority, queued_at LIMIT :many",
            now=time.time(),
            latest=time.time() + LONGEST_PAUSE,  # one that is due later than that was queued with another clock
            many=len(in_hand) + 1,
        )
        return next((str(turn_id) for (turn_id,) in waiting if turn_id not in in_hand), None)

    @_transaction(only_reads=True)
    def queued(self, run: Run, turn_id: str) -> tuple[int, float] | None:
        """How many workers have died while they ran a turn that waits or is held, and when it is due; None if it does neither."""
        rows = run(
            "SELECT deaths, queued_at FROM amplifier_turns WHERE turn_id = :turn AND state IN ('queued', 'held') AND is_open = 1",
            turn=turn_id,
        )
        return (int(rows[0][0]), float(rows[0][1])) if rows else None

    @_transaction(only_reads=True)
    def held(self, run: Run) -> list[tuple[str, int, str, dict[str, str]]]:
        """Turns that are held because workers have another plan: id, attempt, session and plan."""
        changed = {"state": "held", "is_open": 1, "error_type": PLAN_CHANGED}
        found = select(run, "turn_id, attempt, session_id, plan", "amplifier_turns", **changed)
        return [(turn_id, attempt, session, orjson.loads(plan)) for turn_id, attempt, session, plan in found if plan]

    async def claim(
        self, turn_id: str, worker: str, *, adopts: bool = False, but_not: range = range(0)
    ) -> ClaimedTurn | None:
        """Take a turn that waits; None if it does not wait any more.

        The worker is noted as alive in the same transaction: one that was forgotten while it was suspended is known again, so
        that others notice its death.

        Args:
            turn_id: The turn.
            worker: Who takes it.
            adopts: The turn is held, and the worker has its plan.
            but_not: Not if so many workers have died while they ran it.
        """
        mine: int | None = None

        def work(run: Run) -> ClaimedTurn | None:
            nonlocal mine
            _note_life(run, worker)
            which: dict[str, Any] = {"turn": turn_id, "worker": worker}
            claimed = run(
                "UPDATE amplifier_turns SET state = 'running', attempt = attempt + 1, worker = :worker, error_type = NULL, error = NULL "
                "WHERE turn_id = :turn AND state = :state AND is_open = 1 AND NOT (deaths >= :fewest AND deaths < :most) "
                f"RETURNING {_CLAIMED}",
                **which,
                state="held" if adopts else "queued",
                fewest=but_not.start,
                most=but_not.stop,
            )
            if not claimed and mine is not None:  # it may have been committed, and the connection lost meanwhile
                known = "turn_id = :turn AND state = 'running' AND worker = :worker AND attempt = :mine"
                claimed = run(f"SELECT {_CLAIMED} FROM amplifier_turns WHERE {known}", **which, mine=mine)
            turn = _read_claimed(run, turn_id, claimed[0]) if claimed else None
            mine = mine if turn is None else turn.attempt
            return turn

        return await self._do(work)

    async def begin_step(self, turn: ClaimedTurn, step: StepName, plan: Plan | None = None) -> StopRequest | None:
        """Record that a tool call begins now, with the plan of a new turn; not if an immediate stop is stored. Returns the stop."""
        return await self._record(turn, step, f"started {turn.attempt}", None, plan)

    async def finish_step(
        self, turn: ClaimedTurn, step: StepName, result: str, plan: Plan | None = None
    ) -> StopRequest | None:
        """Record the result of a step, with the plan of a new turn. Returns a stop, if known.

        The step may never have begun: a hook may have denied the call.
        """
        return await self._record(turn, step, "finished", result, plan)

    @_transaction()
    def _record(
        self, run: Run, turn: ClaimedTurn, step: StepName, what: str, result: str | None, plan: Plan | None
    ) -> StopRequest | None:
        if plan is not None:
            move(run, turn.turn_id, "running", turn.attempt, plan=as_json(dict(plan)))
        row = {"turn_id": turn.turn_id, "step": storable_key(step.key), "what": what}
        # The row of a beginning has the stop: what RETURNING reads elsewhere is, on Postgres, older than a stop that this waits for.
        added = run(
            "INSERT INTO amplifier_steps (turn_id, step, what, result) SELECT turn_id, CAST(:step AS TEXT), CAST(:what AS TEXT), "
            "COALESCE(CAST(:result AS TEXT), stop) FROM amplifier_turns WHERE turn_id = :turn_id AND state = 'running' "
            "AND attempt = :attempt FOR UPDATE ON CONFLICT DO NOTHING RETURNING result, (SELECT stop FROM amplifier_turns "
            "WHERE amplifier_turns.turn_id = amplifier_steps.turn_id)",
            **row,
            result=result,
            attempt=turn.attempt,
        )
        if not added:  # the turn is lost, or the connection was while this was committed
            return hold_turn(run, turn)
        [(stored, seen)] = added
        if result is not None:
            self._note_step(run, turn.turn_id, step, result)
            return read_stop_request(seen)
        stop = read_stop_request(stored)
        if stop is not None and not stop.graceful:  # a call does not begin after an immediate stop
            delete(run, "amplifier_steps", **row)
        return stop

    @_transaction()
    def ask(self, run: Run, turn: ClaimedTurn, question: Question) -> str | None:
        """Store a question, if it is not there; returns the answer, if that is."""
        hold_turn(run, turn)
        key = {"turn_id": turn.turn_id, "question_id": question.question_id}
        insert(run, "amplifier_questions", **key, details=as_json(attrs.asdict(question)))
        [(answer,)] = select(run, "answer", "amplifier_questions", **key)
        return None if answer is None else str(answer)

    @_transaction()
    def withdraw(self, run: Run, turn: ClaimedTurn, question_id: str) -> None:
        """Remove a question that no one waits for any more, unless it was answered."""
        hold_turn(run, turn)
        run(
            "DELETE FROM amplifier_questions WHERE turn_id = :turn AND question_id = :question AND answer IS NULL RETURNING 1",
            turn=turn.turn_id,
            question=question_id,
        )

    @_transaction(only_reads=True)
    def news(
        self, run: Run, worker: str, asking: Iterable[str]
    ) -> tuple[dict[str, tuple[int, StopRequest | None]], dict[tuple[str, str], str]]:
        """What workers have to react to.

        Args:
            run: Runs statements.
            worker: Whose turns.
            asking: Its turns that wait for answers.

        Returns:
            Attempt and wanted stop of each of its running turns, and answers by turn and question id.
        """
        mine = {"is_open": 1, "state": "running", "worker": worker}
        rows = select(run, "turn_id, attempt, stop", "amplifier_turns", **mine)
        answers: dict[tuple[str, str], str] = {}
        for turn_id in asking:
            answered = (
                "SELECT question_id, answer FROM amplifier_questions WHERE turn_id = :turn AND answer IS NOT NULL"
            )
            answers |= {(turn_id, question): answer for question, answer in run(answered, turn=turn_id)}
        return {turn_id: (attempt, read_stop_request(stop)) for turn_id, attempt, stop in rows}, answers

    @_transaction()
    def add_events(self, run: Run, turn: ClaimedTurn, last_position: int, events: list[str]) -> None:
        """Store events for watchers; the last one has this position."""
        if not insert_events(run, turn, last_position, events):
            hold_turn(run, turn)  # it is lost, or the connection was while this was committed

    @_transaction()
    def finish(self, run: Run, turn: ClaimedTurn, outcome: Outcome, last_position: int, events: list[str]) -> None:
        """End a turn, or hold it: its outcome, the conversation and the last events at once."""
        state: str = outcome.state
        fields = {"answer": outcome.answer, "error_type": outcome.error_type, "error": outcome.error}
        moved = move(run, turn.turn_id, "running", turn.attempt, state=state, **fields)
        if not moved:
            known = select(run, "attempt, state", "amplifier_turns", turn_id=turn.turn_id)
            if known and known[0][0] == turn.attempt and known[0][1] in (state, "stopped"):
                return  # the connection was lost while this was committed
            raise TurnLost
        stop = read_stop_request(moved[0][2])
        if state == "held" and stop is not None:  # it came after the worker looked; the next one obeys it
            self._requeue(run, turn.turn_id, state, turn.attempt)
            return
        if state == "completed" and stop is not None and not stop.graceful:
            move(run, turn.turn_id, state, turn.attempt, state="stopped")
        insert_events(run, turn, last_position, events)
        if outcome.messages is not None:
            run(
                "INSERT INTO amplifier_conversations (session_id, messages) VALUES (:session, :messages) "
                "ON CONFLICT (session_id) DO UPDATE SET messages = excluded.messages RETURNING 1",
                session=turn.session_id,
                messages=as_json(outcome.messages),
            )
        if state != "held":
            delete(run, "amplifier_steps", turn_id=turn.turn_id)  # the conversation has the results now
            self._begin_next(run, turn.session_id)

    # ── workers among each other; plain functions block, for a thread that does not depend on the event loop ──

    @_transaction()
    def register(self, run: Run, worker: str) -> None:
        """Show that a worker lives, before it gets turns."""
        _note_life(run, worker)

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

        return self._do.transaction(work)

    def forget_worker(self, worker: str, beats: int) -> bool:
        """Forget a worker that has died, unless it has beaten since; its turns are orphans then."""
        return self._do.transaction(lambda run: delete(run, "amplifier_workers", worker=worker, beats=beats))

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

        self._do.transaction(work)

    def start_due(self) -> None:
        """Start the turns of schedules that are due; each once, however often it was due since it was looked for."""
        now = time.time()

        def work(run: Run) -> None:
            for each in _read_schedules(run, now):
                following = each.next_at + each.every * ((now - each.next_at) // each.every + 1)
                statement = (
                    "UPDATE amplifier_schedules SET next_at = :next WHERE name = :name AND next_at = :due RETURNING 1"
                )
                if run(statement, next=following, name=each.name, due=each.next_at):
                    with suppress(TurnConflictError):  # an application has used the id for another turn
                        self._start(run, each.session_id, each.prompt, each.turn_id, True, TurnPolicy())

        if self._do.transaction(lambda run: _read_schedules(run, now), only_reads=True):
            self._do.transaction(work)

    @_transaction(only_reads=True)
    def due_notices(self, run: Run) -> list[tuple[str, str, int]]:
        """Turns that have ended and whose starter is to be called back now: id, address, and how often that was tried."""
        found = run(
            "SELECT n.turn_id, n.url, n.tries FROM amplifier_notices AS n JOIN amplifier_turns AS t ON t.turn_id = n.turn_id "
            "WHERE t.is_open = 0 AND n.next_at <= :now ORDER BY n.next_at LIMIT 20",
            now=time.time(),
        )
        return [(turn_id, url, tries) for turn_id, url, tries in found]

    @_transaction()
    def take_notice(self, run: Run, turn_id: str, tries: int) -> TurnStatus | None:
        """Note one more try; None if another worker makes it."""
        taken = run(
            "UPDATE amplifier_notices SET tries = tries + 1, next_at = :next WHERE turn_id = :turn AND tries = :tries RETURNING 1",
            next=time.time() + pause_after(tries),
            turn=turn_id,
            tries=tries,
        )
        return read_status(run, turn_id) if taken else None

    @_transaction()
    def end_notice(self, run: Run, turn_id: str) -> None:
        """Forget a notice that was taken, or is given up."""
        delete(run, "amplifier_notices", turn_id=turn_id)

    def read(self, statement: str, **values: Any) -> list[Row]:
        """Run a statement that only reads."""
        return self._do.transaction(lambda run: run(statement, **values), only_reads=True)

    async def leave(self, worker: str, patience: float) -> None:
        """Forget a worker that ends in good order, and make its turns ready for others at once."""

        def work(run: Run) -> None:
            mine = {"is_open": 1, "state": "running", "worker": worker}
            for turn_id, attempt in select(run, "turn_id, attempt", "amplifier_turns", **mine):
                self._requeue(run, turn_id, "running", attempt)
            delete(run, "amplifier_workers", worker=worker)

        await self._do(work, patience=patience)


def _read_schedules(run: Run, due: float) -> list[Schedule]:
    names = [each.name for each in attrs.fields(Schedule)]
    found = run(f"SELECT {', '.join(names)} FROM amplifier_schedules WHERE next_at <= :due", due=due)
    return [Schedule(**dict(zip(names, row, strict=True))) for row in found]


def _note_life(run: Run, worker: str) -> None:
    run(
        "INSERT INTO amplifier_workers (worker, beats) VALUES (:worker, 1) "
        "ON CONFLICT (worker) DO UPDATE SET beats = amplifier_workers.beats + 1 RETURNING 1",
        worker=worker,
    )


def _read_claimed(run: Run, turn_id: str, claimed: Row) -> ClaimedTurn:
    """A turn with what is recorded of it; given what `_CLAIMED` names."""
    session_id, number, prompt, attempt, plan, stop, deaths, since, deadline_at, messages = claimed
    steps, last = [], 0
    if attempt > 1:  # else nothing is recorded
        steps = select(run, "step, what, result", "amplifier_steps", turn_id=turn_id)
        [(last,)] = select(run, "COALESCE(MAX(last_position), 0)", "amplifier_events", turn_id=turn_id)
    return ClaimedTurn(
        turn_id=turn_id,
        session_id=session_id,
        number=number,
        prompt=prompt,
        attempt=attempt,
        plan=None if plan is None else orjson.loads(plan),
        messages=orjson.loads(messages) if messages else [],
        results={step: orjson.loads(result) for step, what, result in steps if what == "finished"},
        started=Counter(step for step, what, _ in steps if what.startswith("started")),
        last_position=last,
        stop=read_stop_request(stop),
        deaths=deaths,
        since=since,
        deadline_at=deadline_at,
    )


# ── what several transactions do ──────────────────────────────────────────────────────────────────


def move(run: Run, turn_id: str, state: str, attempt: int, /, **changes: Any) -> list[Row]:
    """Change a turn, if it is in this state and attempt still; every change of a turn's row is made here, or is its claim.

    On Postgres another transaction may have changed it since this one has read it; then the caller reads again. One without
    changes locks the row until the end of the transaction.

    Returns:
        Its priority, when it is due, its stop and whether it is open; nothing if it was not changed.
    """
    if "state" in changes:
        changes["is_open"] = int(changes["state"] in OPEN)
        if not changes["is_open"]:
            changes["ended_at"] = time.time()
    assignments = ", ".join(f"{name} = :new_{name}" for name in changes) or "attempt = attempt"
    return run(
        f"UPDATE amplifier_turns SET {assignments} WHERE turn_id = :turn AND state = :state AND attempt = :attempt "
        "RETURNING priority, due_at, stop, is_open",
        turn=turn_id,
        state=state,
        attempt=attempt,
        **{f"new_{name}": value for name, value in changes.items()},
    )


def hold_turn(run: Run, turn: ClaimedTurn) -> StopRequest | None:
    """Make sure, until the end of the transaction, that the turn belongs to this attempt; returns the stop that is stored.

    Raises:
        TurnLost: It does not.
    """
    held = run(
        "SELECT stop FROM amplifier_turns WHERE turn_id = :turn AND state = 'running' AND attempt = :attempt FOR UPDATE",
        turn=turn.turn_id,
        attempt=turn.attempt,
    )
    if not held:
        raise TurnLost
    return read_stop_request(held[0][0])


def read_turns(run: Run, which: str, **values: Any) -> list[TurnStatus]:
    """What turns do now, without their questions."""
    found = run(
        "SELECT turn_id, session_id, state, attempt, deaths, started_at, ended_at, worker, answer, error_type, error "
        f"FROM amplifier_turns WHERE {which}",
        **values,
    )
    names = [each.name for each in attrs.fields(TurnStatus)]
    return [TurnStatus(**dict(zip(names, row, strict=False))) for row in found]


def read_status(run: Run, turn_id: str) -> TurnStatus:
    """What a turn does now."""
    found = read_turns(run, "turn_id = :turn", turn=turn_id)
    if not found:
        raise unknown_turn_error(turn_id)
    if found[0].is_final:
        return found[0]
    asked = run(
        "SELECT details FROM amplifier_questions WHERE turn_id = :turn AND answer IS NULL ORDER BY question_id",
        turn=turn_id,
    )
    return attrs.evolve(found[0], questions=tuple(read_question(orjson.loads(details)) for (details,) in asked))


def read_messages(run: Run, session_id: str) -> list[dict[str, Any]]:
    """The conversation of a session."""
    rows = select(run, "messages", "amplifier_conversations", session_id=session_id)
    found: list[dict[str, Any]] = orjson.loads(rows[0][0]) if rows else []
    return found


def insert_events(run: Run, turn: ClaimedTurn, last_position: int, events: list[str]) -> bool:
    """Store events of a turn, the last one of which has this position; returns whether they were new, and the turn's attempt still is this."""
    added = events and run(
        "INSERT INTO amplifier_events (turn_id, last_position, attempt, events) SELECT turn_id, CAST(:last AS INTEGER), attempt, "
        "CAST(:events AS TEXT) FROM amplifier_turns WHERE turn_id = :turn AND attempt = :attempt AND state <> 'queued' "
        "ON CONFLICT DO NOTHING RETURNING 1",
        last=last_position,
        events=f"[{','.join(events)}]",
        turn=turn.turn_id,
        attempt=turn.attempt,
    )
    return bool(added)
