"""The rows of a turn: what a worker is given, how a turn ends, and the statements that several transactions share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import orjson

from amplifier.contracts import CallKind
from amplifier.errors import SessionBusyError
from amplifier.live import Question

from ._errors import QuestionClosedError, TurnConflictError, TurnLost, unknown_turn_error
from ._tables._database import Row, Run
from ._values import BLOCKS, TurnState, TurnStatus, WatchedEvent

OPEN = ("queued", "running", "held")
WAITS = 2
"""The value of ``is_open`` of a turn that waits behind the open one of its session."""
PLAN_CHANGED = "PlanChanged"
"""The error type of a turn that is held because workers have another plan."""


Plan: TypeAlias = Mapping[str, str]
"""Hashes of the modules of a plan."""


@attrs.frozen(kw_only=True)
class StepName:
    """A model call or a tool call as it is recorded.

    Attributes:
        key: The same in every attempt; that of a call in a child session begins with the call that runs the child.
        kind: What is called.
        name: The tool; empty for a model call.
        since: When it was wanted, in seconds since 1970.
    """

    key: str
    kind: CallKind
    name: str = ""
    since: float = 0.0


@attrs.frozen(kw_only=True)
class StopRequest:
    """How a turn is to be stopped."""

    graceful: bool
    reason: str | None


def prompt_of(turn: ClaimedTurn) -> tuple[Any, dict[str, Any] | None]:
    """The prompt of a turn as a session takes it, and the schema of its answer, if that is typed."""
    if not turn.prompt.startswith(BLOCKS):
        return turn.prompt, None
    found = orjson.loads(turn.prompt.removeprefix(BLOCKS))
    return (found["prompt"], found["schema"]) if isinstance(found, dict) else (found, None)


@attrs.frozen(kw_only=True)
class ClaimedTurn:
    """A turn that a worker runs.

    Attributes:
        number: Of the turn in its session, counted from 1.
        attempt: The fencing number of this worker.
        plan: Of the worker that recorded something first; None if nothing is recorded.
        messages: The conversation before the turn.
        results: Of steps that have finished, by key.
        started: How often tool calls have begun, by key.
        last_position: Of the events so far.
        stop: How the turn is to be stopped, if that was asked for before.
        deaths: Workers that have died while they ran it.
        since: When it was started, in seconds since 1970; 0 if that is not known.
        deadline_at: When it fails, in the same way; None for never.
    """

    turn_id: str
    session_id: str
    number: int
    prompt: str
    attempt: int
    plan: Plan | None
    messages: list[dict[str, Any]]
    results: dict[str, Any]
    started: Mapping[str, int]
    last_position: int
    stop: StopRequest | None
    deaths: int
    since: float = 0.0
    deadline_at: float | None = None


@attrs.frozen(kw_only=True)
class Outcome:
    """How a turn ended, or why it is held."""

    state: TurnState
    answer: str | None = None
    error_type: str | None = None
    error: str | None = None
    messages: list[dict[str, Any]] | None = None


def insert(run: Run, table: str, /, **values: Any) -> bool:
    """Add a row, unless there is one with its key; returns whether it was added."""
    places = ", ".join(f":{name}" for name in values)
    added = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places}) ON CONFLICT DO NOTHING RETURNING 1"
    return bool(run(added, **values))


def select(run: Run, columns: str, table: str, /, **where: Any) -> list[Row]:
    """Columns of the rows with these values."""
    return run(f"SELECT {columns} FROM {table} WHERE {_all(where)}", **where)


def delete(run: Run, table: str, /, **where: Any) -> bool:
    """Remove the rows with these values; returns whether there were any."""
    return bool(run(f"DELETE FROM {table} WHERE {_all(where)} RETURNING 1", **where))


def _all(where: Iterable[str]) -> str:
    return " AND ".join(f"{name} = :{name}" for name in where)


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


def busy_error(session_id: str, turn_id: str, state: str) -> SessionBusyError:
    """The error about a second open turn of a session."""
    return SessionBusyError(
        f"session {session_id!r} has an open turn, {turn_id!r} ({state}); wait for its result or stop it",
        session_id=session_id,
    )


def check_same_turn(turn_id: str, wanted: tuple[str, str], found: tuple[str, str]) -> None:
    """Refuse an id that another turn has; turns are given as session and prompt.

    Raises:
        TurnConflictError: They are not equal.
    """
    if found != wanted:
        raise TurnConflictError(
            f"turn {turn_id!r} exists already, for session {found[0]!r} and another prompt or session; choose another id",
            turn_id=turn_id,
        )


def watched_events(batches: Iterable[tuple[int, int, Any]], position: int) -> list[WatchedEvent]:
    """The events behind a position, from batches of last position, attempt and events as JSON."""
    found: list[WatchedEvent] = []
    for last, attempt, text in batches:
        events = orjson.loads(text)
        for place, (name, data) in enumerate(events, start=last - len(events) + 1):
            if place > position:
                found.append(WatchedEvent(position=place, attempt=attempt, name=name, data=data))
    return found


def check_answer(status: TurnStatus, question_id: str, option: str) -> None:
    """Refuse an answer that nothing waits for.

    Raises:
        QuestionClosedError: The turn does not ask this, or does not offer the option.
    """
    turn_id = status.turn_id
    waiting = {question.question_id: question for question in status.questions}
    if question_id not in waiting:
        names = ", ".join(map(repr, waiting)) or "none"
        raise QuestionClosedError(
            f"turn {turn_id!r} ({status.state}) does not wait for an answer to {question_id!r}; open questions: {names}",
            turn_id=turn_id,
        )
    if option not in waiting[question_id].options:
        raise QuestionClosedError(
            f"question {question_id!r} of turn {turn_id!r} does not offer {option!r}; it offers "
            f"{', '.join(map(repr, waiting[question_id].options))}",
            turn_id=turn_id,
        )


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


def read_question(details: dict[str, Any]) -> Question:
    """A question as it is stored."""
    return Question(**{**details, "options": tuple(details["options"])})


def read_stop_request(stop: str | None) -> StopRequest | None:
    """A stop as it is stored."""
    return None if stop is None else StopRequest(**orjson.loads(stop))


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
