"""Turns as workflows of DBOS, as clients see them: started, read, answered, stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import orjson
import sqlalchemy as sa
from dbos import error as dbos_error

from amplifier._internal.json import JSON
from amplifier.shared_sessions import Question

from ._database import Database
from ._errors import (
    QuestionClosedError,
    busy_error,
    check_answer,
    check_same_turn,
    unknown_turn_error,
)
from ._values import (
    Schedule,
    StopRequest,
    TurnCounts,
    TurnPolicy,
    TurnState,
    TurnStatus,
    WatchedEvent,
)

TURNS: Final = "amplifier-turns"
"""The queue of the workers."""
WAITING: Final = "amplifier-waiting"
QUESTIONS: Final = "amplifier-questions"
WORKERS: Final = "amplifier-workers"
"""Queues without workers, in which rows wait."""

TURN, SCHEDULE, NOTICE = "amplifier-turn", "amplifier-schedule", "amplifier-notice"
"""Names of the workflows."""

EVENTS: Final = "events"
"""The name of a turn's stream."""

QUEUED: Final = ["ENQUEUED", "DELAYED"]
OPEN: Final = [*QUEUED, "PENDING"]
ENDED: Final = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]

_PAGE: Final = 500
_MAX_LOST_RACES: Final = 20

_NEXT_TURN = """
    INSERT INTO amplifier_conversations (session_id, turns) VALUES (:session, 1)
    ON CONFLICT (session_id) DO UPDATE SET turns = amplifier_conversations.turns + 1 RETURNING turns
"""
_LAST_ENDED = "SELECT turn_id FROM amplifier_conversations WHERE session_id = :session"
_CONVERSATION = (
    "SELECT messages, turn_id, outcome FROM amplifier_conversations WHERE session_id = :session"
)
_FORGET = "DELETE FROM amplifier_conversations WHERE session_id = :session"


@attrs.frozen(kw_only=True)
class Details:
    """The third argument of a turn's workflow, after the session and the prompt.

    Attributes:
        number: The number of the turn in its session, counted from 1.
        since: The time at which the turn was started, in seconds since 1970.
        due_at: The time from which the turn may run, in seconds since 1970. None for immediately.
        deadline_at: The deadline of the turn, in seconds since 1970. None for no deadline.
        notify: The address to notify when the turn has ended, or None.
    """

    number: int
    since: float
    due_at: float | None = None
    deadline_at: float | None = None
    notify: str | None = None


@attrs.frozen(kw_only=True)
class Marks:
    """The attributes of a turn's workflow.

    Attributes:
        attempt: The number of times a worker has started or continued the turn.
        deaths: The number of workers that died while running it.
        worker: The worker that runs it. None once it has been handed over.
        last: The worker that ran the turn most recently.
        plan: Hashes of the plan that the turn started with. None until something is recorded.
        stop: The requested stop, as the serializer writes it.
        held: The reason why the turn is held, as the serializer writes it.
        base: The number of messages in the conversation before the turn. None before the first
            attempt.
    """

    attempt: int = 0
    deaths: int = 0
    worker: str | None = None
    last: str | None = None
    plan: dict[str, str] | None = None
    stop: str | None = None
    held: str | None = None
    base: int | None = None


_MARKS: Final = [field.name for field in attrs.fields(Marks)]


def marks_of(row: Any) -> Marks:
    """Return the marks of a turn."""
    attributes = row.attributes or {}
    return Marks(**{name: attributes[name] for name in _MARKS if attributes.get(name) is not None})


def session_of(row: Any) -> str:
    """Return the session of a turn. A fork has its own."""
    return str(row.authenticated_user if row.forked_from is None else row.workflow_id)


def details_of(row: Any) -> Details:
    """Return the details of a turn."""
    return Details(**row.input["args"][2])


def question_id(turn_id: str, name: str) -> str:
    """Return the id of the row of a question."""
    return f"{turn_id}?{name}"


def answer_id(turn_id: str, name: str) -> str:
    """Return the id of the row of an answer."""
    return f"{turn_id}?{name}!"


# A turn is a workflow on a queue. Its attributes (`Marks`) hold everything for which DBOS has no
# column. A turn that waits for another turn of its session is on a second queue without workers,
# and so is a held turn. Whoever ends a turn moves the next one of its session. DBOS's partitions
# could do this, but DBOS processes them in any order, without regard to priorities.
#
# A question is a row of a queue without workers, and so is its answer. The answer's id is derived
# from the question's, so the database accepts only the first of two answers. A schedule is a row
# that waits for its time. When the row runs, it starts a turn and inserts the row for the next one.


class Turns:
    """The turns of one database.

    Every method blocks, so call it through `Database`.
    """

    def __init__(self, database: Database, version: str | None = None) -> None:
        self.database = database
        self.version = version

    @property
    def client(self) -> Any:
        """The client of DBOS."""
        return self.database.client

    # ── rows ──

    def find_row(self, turn_id: str, **options: Any) -> Any:
        """Return the row of a turn, or None."""
        rows = self.client.list_workflows(workflow_ids=[turn_id], **options)
        return rows[0] if rows and rows[0].name == TURN else None

    def row(self, turn_id: str, **options: Any) -> Any:
        """Return the row of a turn.

        Raises:
            UnknownTurnError: There is none.
        """
        row = self.find_row(turn_id, **options)
        if row is None:
            raise unknown_turn_error(turn_id)
        return row

    def mark(self, turn_id: str, **marks: object) -> None:
        """Change some of the marks of a turn."""
        self.client.update_workflow_attributes(turn_id, marks, merge=True)

    def seal(self, value: object) -> str:
        """Serialize a confidential mark, with encryption if there is a key."""
        return self.database.serializer.serialize(value)

    def unseal(self, text: str | None) -> Any:
        """Read the text of `seal`. None stays None."""
        return None if text is None else self.database.serializer.deserialize(text)

    def stop_of(self, marks: Marks) -> StopRequest | None:
        """Return the stop that was requested for a turn, or None."""
        request = self.unseal(marks.stop)
        return None if request is None else StopRequest(**request)

    def conversation(
        self, session_id: str
    ) -> tuple[list[dict[str, JSON]], str | None, dict[str, JSON] | None]:
        """Return the messages of a session, the id of the turn that stored them, and its end."""
        with self.database.engine.connect() as connection:
            row = connection.execute(sa.text(_CONVERSATION), {"session": session_id}).first()
        if row is None or row.messages is None:
            return [], None, None
        return self.unseal(row.messages), row.turn_id, self.unseal(row.outcome)

    # ── for clients ──

    def start(
        self, session_id: str, prompt: str, turn_id: str, queue: bool, policy: TurnPolicy
    ) -> None:
        """Store a turn. With ``queue``, it waits for the session's unfinished turns."""
        for _ in range(_MAX_LOST_RACES):
            with (
                suppress(dbos_error.DBOSWorkflowIDInUseError),
                self.database.engine.begin() as connection,
            ):
                # This locks the session until the transaction ends, so that no other turn can start
                # in it.
                number = connection.execute(
                    sa.text(_NEXT_TURN), {"session": session_id}
                ).scalar_one()
                known = self.find_row(turn_id)
                if known is not None:
                    connection.rollback()
                    check_same_turn(turn_id, (session_id, prompt), tuple(known.input["args"][:2]))
                    return
                # A turn may be stored as ended before DBOS has recorded its end.
                ended = connection.execute(sa.text(_LAST_ENDED), {"session": session_id}).scalar()
                ahead = [row for row in self.open_turns(session_id) if row.workflow_id != ended]
                if ahead and not queue:
                    raise busy_error(session_id, ahead[0].workflow_id, self.state_of(ahead[0]))
                self._enqueue(connection, session_id, prompt, turn_id, number, policy, ahead)
                return
        raise AssertionError(f"turn {turn_id!r} is in use, and cannot be found")

    def open_turns(self, session_id: str) -> list[Any]:
        """Return the rows of a session's open turns, in their order."""
        rows = self.client.list_workflows(
            name=TURN, user=session_id, status=OPEN, load_output=False
        )
        return sorted(
            (row for row in rows if row.forked_from is None),
            key=lambda row: details_of(row).number,
        )

    def begin_next(self, session_id: str, ended: str | None = None) -> None:
        """Make the first turn of a session ready for workers if it waits.

        Args:
            session_id: The session.
            ended: A turn that has ended, even if DBOS hasn't recorded its end yet.
        """
        rows = [row for row in self.open_turns(session_id) if row.workflow_id != ended]
        first = rows[0] if rows else None
        if (
            first is not None
            and first.queue_name == WAITING
            and first.status == "ENQUEUED"
            and marks_of(first).held is None
        ):
            self.client.resume_workflows([first.workflow_id], queue_name=TURNS)

    def _enqueue(
        self,
        connection: sa.Connection,
        session_id: str,
        prompt: str,
        turn_id: str,
        number: int,
        policy: TurnPolicy,
        ahead: list[Any],
    ) -> None:
        due_at = policy.due_at
        now = time.time()
        details = Details(
            number=number,
            since=now,
            due_at=due_at,
            deadline_at=policy.deadline_at,
            notify=policy.notify,
        )
        options: dict[str, Any] = {
            "queue_name": WAITING if ahead else TURNS,
            "workflow_name": TURN,
            "workflow_id": turn_id,
            "workflow_id_reuse_policy": "reject",
            "authenticated_user": session_id,
            "priority": policy.priority,
            "attributes": {"attempt": 0},
        }
        if due_at is not None and due_at > now:
            options["delay_seconds"] = due_at - now
        self.client.enqueue_in_transaction(
            connection, options, session_id, prompt, attrs.asdict(details)
        )

    def state_of(self, row: Any) -> TurnState:
        """Return the state of a turn."""
        if row.status == "PENDING":
            return "running" if marks_of(row).worker is not None else "queued"
        if row.status in QUEUED:
            return "queued" if marks_of(row).held is None else "held"
        if row.status == "SUCCESS":
            state: TurnState = row.output["state"] if isinstance(row.output, dict) else "completed"
            return state
        return "stopped" if row.status == "CANCELLED" else "failed"

    def status(self, turn_id: str, *, questions: bool = True) -> TurnStatus:
        """Return the current state of a turn with its open questions."""
        status = self.status_of(self.row(turn_id))
        if not questions or status.is_final:
            return status
        return attrs.evolve(status, questions=tuple(self.open_questions(turn_id)))

    def status_of(self, row: Any) -> TurnStatus:
        """Return the state of a turn, without its questions."""
        marks, state = marks_of(row), self.state_of(row)
        outcome: dict[str, JSON] = (
            row.output if isinstance(row.output, dict) and row.status == "SUCCESS" else {}
        )
        since = details_of(row).since
        if state == "held":
            outcome = self.unseal(marks.held)
        elif row.status in ("ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"):
            outcome = {"error_type": type(row.error).__name__, "error": str(row.error)}
        ended = outcome.get("ended") or (row.completed_at or 0) / 1000
        return TurnStatus(
            turn_id=row.workflow_id,
            session_id=session_of(row),
            state=state,
            attempt=marks.attempt,
            takeovers=marks.deaths,
            started=since,
            ended=max(since, ended) if row.status in ENDED else None,
            worker=marks.worker or marks.last,
            answer=outcome.get("answer"),
            error_type=outcome.get("error_type"),
            error=outcome.get("error"),
        )

    def open_questions(self, turn_id: str) -> list[Question]:
        """Return the questions of a turn that haven't been answered."""
        rows = {
            row.workflow_id: row
            for row in self.client.list_workflows(
                queue_name=QUESTIONS, workflow_id_prefix=question_id(turn_id, ""), load_output=False
            )
        }
        open_ones = [
            row
            for name, row in sorted(rows.items())
            if not name.endswith("!") and f"{name}!" not in rows
        ]
        return [read_question(row) for row in open_ones]

    def _pages(self, **filters: Any) -> Iterator[Any]:
        """Yield all turns of a kind, the latest one first."""
        offset = 0
        while True:
            rows = self.client.list_workflows(
                name=TURN, sort_desc=True, limit=_PAGE, offset=offset, **filters
            )
            yield from rows
            if len(rows) < _PAGE:
                return
            offset += _PAGE

    def find(
        self, state: TurnState | None, session: str | None, since: float | None, limit: int
    ) -> list[TurnStatus]:
        """Return turns, the latest one first."""
        filters: dict[str, Any] = {}
        if session is not None:
            filters["user"] = session
        if since is not None:
            # The clock of the database may count whole seconds.
            filters["start_time"] = _iso(since - 1)
        if state is not None:
            statuses = {
                "queued": OPEN,
                "running": ["PENDING"],
                "held": QUEUED,
                "stopped": ["SUCCESS", "CANCELLED"],
            }
            filters["status"] = statuses.get(
                state, ["SUCCESS", "ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
            )
        matches: list[TurnStatus] = []
        for row in self._pages(**filters):
            status = self.status_of(row)
            if (state is None or status.state == state) and (
                since is None or status.started >= since
            ):
                matches.append(status)
            if len(matches) >= max(limit, 1) + _PAGE:
                break
        matches.sort(key=lambda status: status.started, reverse=True)
        return matches[:limit]

    def counts(self, *, only_open: bool = False) -> TurnCounts:
        """Count the turns by state."""
        turns: list[tuple[TurnState, Any]] = [
            (self.state_of(row), row)
            for row in self._pages(**({"status": OPEN} if only_open else {}))
        ]
        open_ones = [row for _, row in turns if row.status in OPEN]
        now = time.time()
        return TurnCounts(
            states=dict(Counter(state for state, _ in turns)),
            oldest=max((now - details_of(row).since for row in open_ones), default=0.0),
            attempts=sum(marks_of(row).attempt for row in open_ones),
            takeovers=sum(marks_of(row).deaths for row in open_ones),
        )

    def events_after(
        self, turn_id: str, offset: int, position: int
    ) -> tuple[list[WatchedEvent], int, bool]:
        """Return the events of the batches from an offset on, the next offset, and a flag.

        The flag is True if there will be no more events.

        Args:
            turn_id: The turn.
            offset: The offset of the first batch.
            position: The position of the last event before that batch.
        """
        # Read the status before the events, so that no event before the end is missed.
        is_over = self.row(turn_id, load_input=False, load_output=False).status in ENDED
        events: list[WatchedEvent] = []
        batches = self.client.read_stream(turn_id, EVENTS, offset=offset, timeout_seconds=0.0)
        try:
            for batch in batches:
                offset += 1
                for text in batch["events"]:
                    position += 1
                    name, data = orjson.loads(text)
                    events.append(
                        WatchedEvent(
                            position=position, attempt=batch["attempt"], name=name, data=data
                        )
                    )
        except dbos_error.DBOSStreamTimeoutError:
            pass
        except dbos_error.DBOSNonExistentWorkflowError:
            raise unknown_turn_error(turn_id) from None
        finally:
            batches.close()
        return events, offset, is_over

    def answer(self, turn_id: str, name: str, option: str) -> None:
        """Store the answer to a question."""
        status = self.status(turn_id)
        if not status.is_final and all(
            question.question_id != name for question in status.questions
        ):
            known = self.client.list_workflows(workflow_ids=[answer_id(turn_id, name)])
            if known and known[0].input["args"] == [option]:
                # The same answer was sent twice, for example after a lost connection.
                return
        check_answer(status, name, option)
        row = {
            "queue_name": QUESTIONS,
            "workflow_name": "amplifier-answer",
            "authenticated_user": status.session_id,
        }
        row |= {"workflow_id": answer_id(turn_id, name), "workflow_id_reuse_policy": "reject"}
        try:
            self.client.enqueue(row, option)
        except dbos_error.DBOSWorkflowIDInUseError:
            [first] = self.client.list_workflows(workflow_ids=[answer_id(turn_id, name)])
            if first.input["args"] != [option]:
                raise QuestionClosedError(
                    f"turn {turn_id!r} ({status.state}) does not wait for an answer to {name!r}: "
                    f"it was answered with {first.input['args'][0]!r} a moment ago",
                    turn_id=turn_id,
                ) from None

    def request_stop(self, turn_id: str, graceful: bool, reason: str | None) -> None:
        """Record a request to stop a turn. A turn that hasn't started ends immediately."""
        row = self.row(turn_id, load_output=False)
        if row.status in ENDED:
            return
        marks = marks_of(row)
        known = self.stop_of(marks)
        if graceful and known is not None and not known.graceful:
            # An immediate stop that was acknowledged can't turn graceful.
            return
        self.mark(turn_id, stop=self.seal({"graceful": graceful, "reason": reason}))
        if row.status in QUEUED and marks.attempt == 0:
            if (notify := details_of(row).notify) is not None:
                self.enqueue_notice(turn_id, notify)
            self.client.cancel_workflow(turn_id)
            self.begin_next(row.authenticated_user)
        elif marks.held is not None:
            self.requeue(row)

    def resume(self, turn_id: str) -> None:
        """Continue a held turn with any plan, or a turn of another version with this version."""
        row = self.row(turn_id, load_output=False)
        if row.status not in QUEUED:
            return
        if self.version is not None and row.app_version not in (None, self.version):
            steps = self.client.list_workflow_steps(turn_id, load_output=False)
            self.client.cancel_workflow(turn_id)
            self.mark(turn_id, held=None, plan=None)
            self.client.rewind_workflow(
                turn_id,
                start_step=max((step["function_id"] for step in steps), default=0) + 1,
                application_version=self.version,
                queue_name=TURNS,
            )
        elif marks_of(row).held is not None:
            self.mark(turn_id, plan=None)
            self.requeue(row)

    def requeue(self, row: Any) -> None:
        """Make a held turn ready for workers."""
        self.mark(row.workflow_id, held=None)
        self.client.resume_workflows([row.workflow_id], queue_name=TURNS)

    def release(self, turn_id: str) -> None:
        """Take a turn away from the worker that runs it."""
        row = self.row(turn_id, load_input=False, load_output=False)
        if row.status == "PENDING":
            self.mark(turn_id, worker=None)
            self.client.resume_workflows([turn_id], queue_name=TURNS)

    def messages(self, session_id: str) -> list[dict[str, JSON]]:
        """Return the conversation of a session."""
        return self.conversation(session_id)[0]

    def forget(self, before: float) -> int:
        """Delete turns that ended before a given time, with all their data."""
        names = [
            row.workflow_id
            for row in self._pages(
                status=ENDED, completed_before=_iso(before), load_input=False, load_output=False
            )
        ]
        for start in range(0, len(names), _PAGE):
            self.delete(names[start : start + _PAGE])
        return len(names)

    def delete(self, turn_ids: list[str]) -> None:
        """Delete turns with their questions."""
        prefixes = [question_id(turn_id, "") for turn_id in turn_ids]
        questions = self.client.list_workflows(
            queue_name=QUESTIONS, workflow_id_prefix=prefixes, load_input=False, load_output=False
        )
        self.client.delete_workflows([*turn_ids, *(row.workflow_id for row in questions)])

    def forget_session(self, session_id: str) -> bool:
        """Delete everything about a session."""
        with self.database.engine.begin() as connection:
            was_there = connection.execute(sa.text(_FORGET), {"session": session_id}).rowcount
            if ahead := self.open_turns(session_id):
                raise busy_error(session_id, ahead[0].workflow_id, self.state_of(ahead[0]))
        rows = self.client.list_workflows(user=session_id, load_input=False, load_output=False)
        if rows:
            self.client.delete_workflows([row.workflow_id for row in rows])
        return bool(was_there or rows)

    # ── schedules ──

    def schedule(self, wanted: Schedule) -> None:
        """Store a schedule, replacing one of the same name."""
        self.unschedule(wanted.name)
        self.enqueue_schedule(wanted)

    def enqueue_schedule(self, wanted: Schedule) -> None:
        """Queue a schedule for its next run."""
        self.client.enqueue(_waiting_row(wanted), attrs.asdict(wanted))

    def prolong_schedule(self, workflow_id: str, following: Schedule) -> None:
        """Queue a schedule for its next run, unless its row was removed.

        Args:
            workflow_id: The id of the row that has run.
            following: The schedule with its next time.
        """
        with self._schedule_lock(following.name) as connection:
            if self.client.list_workflows(workflow_ids=[workflow_id], load_input=False):
                row = _waiting_row(following)
                self.client.enqueue_in_transaction(connection, row, attrs.asdict(following))

    # If a worker prolonged a schedule during its removal, the schedule would come back. So both
    # operations lock a row of our own table, which no other transaction can write until they end.
    @contextmanager
    def _schedule_lock(self, name: str) -> Iterator[sa.Connection]:
        key = {"session": f"schedule?{name}"}
        with self.database.engine.begin() as connection:
            connection.execute(sa.text(_NEXT_TURN), key)
            yield connection
            connection.execute(sa.text(_FORGET), key)

    def schedules(self, name: str | None = None) -> list[Schedule]:
        """Return all schedules, or the one with this name."""
        latest: dict[str, Schedule] = {}
        for row in self._schedule_rows(name):
            schedule = Schedule(**row.input["args"][0])
            if schedule.name not in latest or latest[schedule.name].next_at < schedule.next_at:
                latest[schedule.name] = schedule
        return list(latest.values())

    def _schedule_rows(self, name: str | None) -> list[Any]:
        prefix = "schedule?" if name is None else f"schedule?{name}?"
        rows = self.client.list_workflows(
            name=SCHEDULE, status=OPEN, workflow_id_prefix=prefix, load_output=False
        )
        return [row for row in rows if row.workflow_id.startswith(prefix)]

    def unschedule(self, name: str) -> bool:
        """Remove a schedule. Return whether there was one."""
        was_there = False
        while True:
            with self._schedule_lock(name):
                rows = self._schedule_rows(name)
            if not rows:
                return was_there
            # A worker may have prolonged the schedule before this, so check again.
            self.client.delete_workflows([row.workflow_id for row in rows])
            was_there = True

    # ── notices ──

    def enqueue_notice(
        self, turn_id: str, url: str, tries: int = 0, waits: int = 0, seconds: float = 0.0
    ) -> None:
        """Have a worker report the end of a turn to the address passed at its start.

        Args:
            turn_id: The turn.
            url: The address.
            tries: The number of failed tries so far.
            waits: The number of times that the turn was found still open.
            seconds: Seconds to wait before the next try.
        """
        options: dict[str, Any] = {
            "queue_name": TURNS,
            "workflow_name": NOTICE,
            "workflow_id": f"notice?{turn_id}?{tries}.{waits}",
            "priority": 1,
        }
        if seconds > 0:
            options["delay_seconds"] = seconds
        self.client.enqueue(options, turn_id, url, tries, waits)


def _waiting_row(schedule: Schedule) -> dict[str, Any]:
    """Return the options of the row in which a schedule waits for its next time."""
    options: dict[str, Any] = {
        "queue_name": TURNS,
        "workflow_name": SCHEDULE,
        "workflow_id": f"schedule?{schedule.name}?{schedule.next_at:.0f}",
        "authenticated_user": schedule.session_id,
        "priority": 1,
    }
    if (seconds := schedule.next_at - time.time()) > 0:
        options["delay_seconds"] = seconds
    return options


def read_question(row: Any) -> Question:
    """Return the question stored in a row."""
    details = row.input["args"][0]
    return Question(**{**details, "options": tuple(details["options"])})


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(min(max(moment, 0.0), 253402300799.0), UTC).isoformat()
