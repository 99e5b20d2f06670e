"""Values that engines return, store and pass to workers, and their stored form."""

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
"""The state of a turn. The first three states are open, the others final.

A ``held`` turn waits for a worker with its plan, or for `DurableEngine.resume`.
"""

BLOCKS = "\x1eblocks:"
"""The prefix of a stored prompt that is JSON.

The JSON is a list of blocks, a text that itself starts with this prefix, or an object with the
prompt and the schema of its answer.
"""

PLAN_CHANGED = "PlanChanged"
"""The error type of a turn that is held because the workers have a different plan."""

Plan: TypeAlias = Mapping[str, str]
"""Hashes of the modules of a plan."""

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MAX_DEPTH = 200
_MAX_KEY_LENGTH = 500
_REPLACEMENT = "\ufffd"

# ── for applications ──────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class TurnStatus:
    """A turn at one moment.

    Attributes:
        turn_id: The id of the turn.
        session_id: The id of its session.
        state: The state of the turn.
        attempt: The number of times a worker has started or continued it.
        takeovers: The number of times another worker took over because a worker died while running
            the turn.
        started: The time of the call to `DurableEngine.start`, in seconds since 1970.
        ended: The time at which the turn ended. None while it is open.
        worker: The worker that runs the turn, or ran it most recently.
        answer: The text of a completed turn. After a graceful stop, the text so far.
        error_type: The class of the error with which the turn failed, or because of which it is
            held.
        error: The message of that error.
        questions: The questions that wait for an answer. Empty in `DurableEngine.list`.
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
        """True if the turn has ended."""
        return self.state in ("completed", "failed", "stopped")


@attrs.frozen(kw_only=True)
class TurnCounts:
    """The turns of an engine at one moment.

    Attributes:
        states: The number of turns in each state.
        oldest: Seconds since the oldest open turn was started. 0 if none is open.
        attempts: The sum of the attempts of all open turns.
        takeovers: The sum of the takeovers of all open turns.
    """

    states: Mapping[TurnState, int]
    oldest: float = 0.0
    attempts: int = 0
    takeovers: int = 0


@attrs.frozen(kw_only=True)
class WatchedEvent:
    """An event of a turn as a watcher receives it.

    Attributes:
        position: The number of the event, counted from 1 over all attempts. Pass it to
            `DurableEngine.watch` to continue after this event.
        attempt: The attempt that emitted the event. Events of a killed attempt may be missing, and
            occur again in the next attempt.
        name: The name of the event.
        data: The payload as JSON, without secrets. A very large payload is reduced to its plain
            values.
    """

    position: int
    attempt: int
    name: str
    data: dict[str, Any]


@attrs.frozen(kw_only=True)
class TurnPolicy:
    """Options of a turn. Times are in seconds since 1970."""

    priority: int = 3
    due_at: float | None = None
    deadline_at: float | None = None
    notify: str | None = None


@attrs.frozen(kw_only=True)
class Schedule:
    """Starts turns of a session at regular intervals. See `DurableEngine.schedule`.

    Attributes:
        name: The name of the schedule.
        session_id: The id of the session.
        prompt: The prompt of each turn as the engine stores it. A prompt in blocks is JSON.
        every: Seconds from one turn to the next.
        next_at: The time at which the next turn is due, in seconds since 1970.
    """

    name: str
    session_id: str
    prompt: str
    every: int
    next_at: float

    @property
    def turn_id(self) -> str:
        """The id of the next turn: the name and the date."""
        return f"{self.name}-{datetime.fromtimestamp(self.next_at, UTC):%Y-%m-%dT%H:%M:%SZ}"


# ── for workers ───────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class StepName:
    """A model call or a tool call as it is recorded.

    Attributes:
        key: The key of the call, the same in every attempt. In a child session it starts with the
            key of the call that runs the child.
        kind: The kind of the call.
        name: The name of the tool. Empty for a model call.
    """

    key: str
    kind: CallKind
    name: str = ""

    @property
    def record(self) -> str:
        """The name of the step that DBOS records, the same in every attempt."""
        parts = (
            self.kind,
            storable_text(self.name, allows_nul=False)[:100],
            storable_key(self.key),
        )
        return " ".join(part for part in parts if part)


@attrs.frozen(kw_only=True)
class StopRequest:
    """A request to stop a turn, gracefully or at once."""

    graceful: bool
    reason: str | None


@attrs.frozen(kw_only=True)
class ClaimedTurn:
    """A turn that a worker runs.

    Attributes:
        turn_id: The id of the turn.
        session_id: The id of its session.
        number: The number of the turn in its session, counted from 1.
        prompt: The prompt as engines store it.
        attempt: The number of the attempt, which serves as a fencing token.
        plan: The plan of the worker that made the first record. None if there are no records.
        messages: The conversation before the turn.
        results: The results of finished steps, keyed by record name.
        started: The number of times each tool call has started, keyed by record name.
        stop: The stop that was requested before this attempt, or None.
        deaths: The number of workers that have died while running the turn.
        since: The time at which the turn was started, in seconds since 1970. 0 if unknown.
        deadline_at: The deadline of the turn, in seconds since 1970. None for no deadline.
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
        """True if the turn was resumed with a plan other than the one it started with."""
        return self.plan is None and bool(self.results or self.started)


@attrs.frozen(kw_only=True)
class Outcome:
    """The end of a turn, or the reason why it is held."""

    state: TurnState
    answer: str | None = None
    error_type: str | None = None
    error: str | None = None
    messages: list[dict[str, Any]] | None = None


# ── the stored form ───────────────────────────────────────────────────────────────────────────────


def prompt_of(turn: ClaimedTurn) -> tuple[Any, dict[str, Any] | None]:
    """Return the prompt of a turn in the form for a session, and the schema of a typed answer."""
    if not turn.prompt.startswith(BLOCKS):
        return turn.prompt, None
    stored = orjson.loads(turn.prompt.removeprefix(BLOCKS))
    return (stored["prompt"], stored["schema"]) if isinstance(stored, dict) else (stored, None)


_COMPACTIONS = "compactions"


def with_compactions(
    messages: list[dict[str, Any]], records: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a conversation as engines store it.

    The journal of its compactions is in the metadata of its last message.
    """
    if not messages or not records:
        return messages
    *before, last = messages
    return [*before, {**last, "metadata": {**(last.get("metadata") or {}), _COMPACTIONS: records}}]


def without_compactions(
    messages: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the result of `with_compactions` into the messages and the journal."""
    metadata = messages[-1].get("metadata") if messages else None
    if not metadata or _COMPACTIONS not in metadata:
        return messages, []
    *before, last = messages
    rest = {name: value for name, value in metadata.items() if name != _COMPACTIONS}
    own = {name: value for name, value in last.items() if name != "metadata"}
    return [*before, {**own, "metadata": rest} if rest else own], metadata[_COMPACTIONS]


# ── storable text and JSON ────────────────────────────────────────────────────────────────────────


# Content that can't be stored is replaced. No model answer, tool result or exception may prevent a
# turn from being recorded, or end the worker that records it.


def storable_text(text: str, *, allows_nul: bool) -> str:
    """Replace lone surrogates, and NUL where it isn't allowed, with U+FFFD.

    Args:
        text: Any text.
        allows_nul: False for Postgres, which can't store NUL in text. SQLite can.
    """
    if not allows_nul and "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    return text if text.isascii() else _SURROGATES.sub(_REPLACEMENT, text)


def as_json(value: object) -> str:
    """Return a value as JSON. Objects and integers beyond 64 bits become text."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    # The value has a lone surrogate or a large integer, is too deep, or contains itself.
    except TypeError:
        plain = rebuild(
            value,
            _storable_value,
            subject="value cannot be stored",
            max_depth=_MAX_DEPTH,
            mark=True,
        )
        return orjson.dumps(plain, default=_object_text, option=orjson.OPT_NON_STR_KEYS).decode()


def _storable_value(value: Any, frames: Sequence[Frame]) -> Any:
    if isinstance(value, str):
        return storable_text(value, allows_nul=True)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        # Python refuses to convert very long integers to decimal.
        return str(value) if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, dict):
        return {storable_text(str(key), allows_nul=True): item for key, item in value.items()}
    return value


def _object_text(value: object) -> str:
    return storable_text(str(value), allows_nul=True)


def storable_key(key: str) -> str:
    """Return a step's key as it is stored.

    The model chooses a part of the key, and Postgres limits the size of indexed values.
    """
    if len(key) <= _MAX_KEY_LENGTH and key == storable_text(key, allows_nul=False):
        return key
    return f"sha256-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
