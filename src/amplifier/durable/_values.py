"""What is known of turns and schedules: the values that engines return, store and give to workers, and the text and JSON that they can store.

What an engine cannot hold is replaced, everything else stays as it is: what a model, a tool or an exception contains must not keep a turn
from being recorded, nor end the worker that records it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import attrs
import orjson

from amplifier._internal.json import Frame, rebuild
from amplifier.contracts import CallKind
from amplifier.shared_sessions import Question

TurnState: TypeAlias = Literal["queued", "running", "held", "completed", "failed", "stopped"]
"""What a turn does: the first three are open, the others final. A ``held`` turn waits for a worker with its plan, or for `DurableEngine.resume`."""

BLOCKS = "\x1eblocks:"
"""Begins a stored prompt that is JSON: a list of blocks, a text that begins like this, or an object with the prompt and the schema of its answer."""

PLAN_CHANGED = "PlanChanged"
"""The error type of a turn that is held because workers have another plan."""

Plan: TypeAlias = Mapping[str, str]
"""Hashes of the modules of a plan."""

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_DEEPEST = 200
_LONGEST_KEY = 500
_REPLACEMENT = "\ufffd"

# ── what engines return ───────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class TurnStatus:
    """A turn at one moment.

    Attributes:
        turn_id: The turn.
        session_id: Its session.
        state: What it does.
        attempt: How often a worker has begun it or gone on with it.
        takeovers: How many workers have died while they ran it, so that another one took it over.
        started: When it was handed over with `DurableEngine.start`, in seconds since 1970.
        ended: When it ended; None while it is open.
        worker: Who runs it, or ran it last.
        answer: The text of a completed turn; of one that was stopped gracefully, the text so far.
        error_type: The class of the error that it failed with or is held for.
        error: Its message.
        questions: What waits for an answer; empty in `DurableEngine.list`.
    """

    turn_id: str
    session_id: str
    state: TurnState
    attempt: int
    takeovers: int = 0
    started: float = 0.0
    ended: float | None = None
    worker: str | None = None
    answer: str | None = None
    error_type: str | None = None
    error: str | None = None
    questions: tuple[Question, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "stopped")


@attrs.frozen(kw_only=True)
class TurnCounts:
    """The turns of an engine at one moment.

    Attributes:
        states: How many there are in each state.
        oldest: Seconds for which the oldest open turn has been open; 0 if there is none.
        attempts: Of the open turns together.
        takeovers: Of the open turns together.
    """

    states: Mapping[TurnState, int]
    oldest: float = 0.0
    attempts: int = 0
    takeovers: int = 0


@attrs.frozen(kw_only=True)
class WatchedEvent:
    """An event of a turn as a watcher sees it.

    Attributes:
        position: Counted from 1 over all attempts; `DurableEngine.watch` goes on after one.
        attempt: The attempt that emitted it. Events of an attempt that was killed may be missing, and come again in the next.
        name: The event.
        data: Its payload as JSON, without secrets; of a very large one only the plain values.
    """

    position: int
    attempt: int
    name: str
    data: dict[str, Any]


@attrs.frozen(kw_only=True)
class TurnPolicy:
    """How a turn is to be run; moments are in seconds since 1970."""

    priority: int = 3
    due_at: float | None = None
    deadline_at: float | None = None
    notify: str | None = None


@attrs.frozen(kw_only=True)
class Schedule:
    """Starts turns of a session again and again, see `DurableEngine.schedule`.

    Attributes:
        name: Its own.
        session_id: The session.
        prompt: Of each turn, as the engine stores it: one in blocks is JSON.
        every: Seconds from one turn to the next.
        next_at: When the next one is due, in seconds since 1970.
    """

    name: str
    session_id: str
    prompt: str
    every: int
    next_at: float

    @property
    def turn_id(self) -> str:
        """Of the next turn: the name and the date."""
        return f"{self.name}-{datetime.fromtimestamp(self.next_at, UTC):%Y-%m-%dT%H:%M:%SZ}"


# ── what workers are given and record ─────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class StepName:
    """A model call or a tool call as it is recorded.

    Attributes:
        key: The same in every attempt; that of a call in a child session begins with the call that runs the child.
        kind: What is called.
        name: The tool; empty for a model call.
    """

    key: str
    kind: CallKind
    name: str = ""

    @property
    def record(self) -> str:
        """The name of the step that DBOS records, the same in every attempt."""
        words = (
            self.kind,
            storable_text(self.name, allows_nul=False)[:100],
            storable_key(self.key),
        )
        return " ".join(word for word in words if word)


@attrs.frozen(kw_only=True)
class StopRequest:
    """How a turn is to be stopped."""

    graceful: bool
    reason: str | None


@attrs.frozen(kw_only=True)
class ClaimedTurn:
    """A turn that a worker runs.

    Attributes:
        number: Of the turn in its session, counted from 1.
        attempt: The fencing number of this worker.
        plan: Of the worker that recorded something first; None if nothing is recorded.
        messages: The conversation before the turn.
        results: Of steps that have finished, by the name of their record.
        started: How often tool calls have begun, in the same way.
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
    stop: StopRequest | None
    deaths: int
    since: float = 0.0
    deadline_at: float | None = None

    @property
    def has_new_plan(self) -> bool:
        """Whether someone has resumed it with another plan than it began with."""
        return self.plan is None and bool(self.results or self.started)


@attrs.frozen(kw_only=True)
class Outcome:
    """How a turn ended, or why it is held."""

    state: TurnState
    answer: str | None = None
    error_type: str | None = None
    error: str | None = None
    messages: list[dict[str, Any]] | None = None


# ── how they are stored ───────────────────────────────────────────────────────────────────────────


def prompt_of(turn: ClaimedTurn) -> tuple[Any, dict[str, Any] | None]:
    """The prompt of a turn as a session takes it, and the schema of its answer, if that is typed."""
    if not turn.prompt.startswith(BLOCKS):
        return turn.prompt, None
    found = orjson.loads(turn.prompt.removeprefix(BLOCKS))
    return (found["prompt"], found["schema"]) if isinstance(found, dict) else (found, None)


def read_question(details: dict[str, Any]) -> Question:
    """A question as it is stored."""
    return Question(**{**details, "options": tuple(details["options"])})


_COMPACTIONS = "compactions"


def with_compactions(
    messages: list[dict[str, Any]], records: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A conversation as engines store it: the journal of its compactions is in the metadata of its last message."""
    if not messages or not records:
        return messages
    *before, last = messages
    return [*before, {**last, "metadata": {**(last.get("metadata") or {}), _COMPACTIONS: records}}]


def without_compactions(
    messages: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What `with_compactions` was given."""
    metadata = messages[-1].get("metadata") if messages else None
    if not metadata or _COMPACTIONS not in metadata:
        return messages, []
    *before, last = messages
    rest = {name: value for name, value in metadata.items() if name != _COMPACTIONS}
    own = {name: value for name, value in last.items() if name != "metadata"}
    return [*before, {**own, "metadata": rest} if rest else own], metadata[_COMPACTIONS]


# ── text and JSON that an engine can store ────────────────────────────────────────────────────────


def storable_text(text: str, *, allows_nul: bool) -> str:
    """Text without lone surrogates, and without NUL where that is not allowed; U+FFFD takes their place.

    Args:
        text: Of any origin.
        allows_nul: Postgres has no NUL in text, SQLite has.
    """
    if not allows_nul and "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    return text if text.isascii() else _SURROGATES.sub(_REPLACEMENT, text)


def as_json(value: Any) -> str:
    """A value as JSON. Objects become text; so do integers beyond 64 bits, which JSON readers round."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (
        TypeError
    ):  # a lone surrogate, a large integer, a value that is too deep or contains itself
        plain = rebuild(
            value, _storable_value, subject="value cannot be stored", max_depth=_DEEPEST, mark=True
        )
        return orjson.dumps(plain, default=_object_text, option=orjson.OPT_NON_STR_KEYS).decode()


def _storable_value(value: Any, frames: Sequence[Frame]) -> Any:
    if isinstance(value, str):
        return storable_text(value, allows_nul=True)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        # Python refuses to write very long ones in decimal.
        return str(value) if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, dict):
        return {storable_text(str(key), allows_nul=True): each for key, each in value.items()}
    return value


def _object_text(value: Any) -> str:
    return storable_text(str(value), allows_nul=True)


def storable_key(key: str) -> str:
    """A step's key as it is stored. The model chooses a part of it, and an index of Postgres has limits."""
    if len(key) <= _LONGEST_KEY and key == storable_text(key, allows_nul=False):
        return key
    return f"sha256-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
