"""The interface of an engine: start turns, watch them, and run workers."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, get_args, overload

import anyio
import attrs
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from amplifier.errors import PlanError
from amplifier.kernel import AmplifierSession
from amplifier.models import Prompt, to_json
from amplifier.models.prompts import read_prompt
from amplifier.plan import validate_session_id

from ._errors import TurnFailedError, TurnHeldError, TurnStoppedError, unknown_turn_error
from ._reporting import is_measured, note_counts
from ._suspects import CallLimit, CallLimits, Settings
from ._values import (
    BLOCKS,
    Schedule,
    TurnCounts,
    TurnPolicy,
    TurnState,
    TurnStatus,
    WatchedEvent,
    storable_text,
    without_compactions,
)

if TYPE_CHECKING:
    from ._turns import Turns

__all__ = ["DurableEngine", "SessionFactory"]

T = TypeVar("T")

_MAX_SECONDS: Final = 100 * 365 * 86400.0
_MAX_NAME_LENGTH: Final = 170
"""Maximum length of a schedule's name. The ids of its turns consist of the name and a date."""

SessionFactory: TypeAlias = Callable[[str], AmplifierSession]
"""Returns an unopened session for a session id. Workers call it for every attempt of a turn.

This is a sync function that runs on the event loop, so it has to be quick. If it raises, the turn
fails.

The context of the session has to start empty, as context-simple does. The engine stores the
conversation and fills the context.
"""

_REPORT_SECONDS = 10.0
_ADDRESS = re.compile(r"https?://[!-~]{1,4000}")

# Inside the class, `DurableEngine.list` hides the built-in type.
_Statuses: TypeAlias = list[TurnStatus]
_Messages: TypeAlias = list[dict[str, Any]]
_Schedules: TypeAlias = "list[Schedule]"


@attrs.frozen(kw_only=True)
class Duty:
    """The task of a worker: run turns until cancelled.

    Attributes:
        make_session: Makes the session of a turn.
        concurrency: The number of turns that run at the same time.
        limits: The limits of the worker's calls.
        leaving: Once set, the worker starts nothing, and returns when no turn has a running call.
        on_start: Called once the worker accepts turns.
    """

    make_session: SessionFactory
    concurrency: int
    limits: CallLimits
    leaving: anyio.Event
    on_start: Callable[[], None]


class DurableEngine:
    """Runs turns so that they survive their processes. Use `open_engine` to open an engine.

    An application starts turns and follows them. Workers in the same process or in others run them.
    A turn belongs to a session. A session has one open turn at a time, and the engine keeps its
    conversation between turns.

    Every method raises `EngineClosedError` if the engine has been closed, and
    `EngineUnavailableError` if the database doesn't respond, so that nothing was stored.
    """

    def __init__(
        self, turns: Turns, settings: Settings, work: Callable[[Duty], Awaitable[None]]
    ) -> None:
        self._turns = turns
        self._do = turns.database
        self._poll = settings.poll
        self._lease = settings.lease
        self._work = work

    async def start(
        self,
        session_id: str,
        prompt: Prompt,
        *,
        turn_id: str | None = None,
        queue: bool = False,
        priority: int = 3,
        delay: float = 0.0,
        deadline: float | None = None,
        result_type: Any = None,
        notify: str | None = None,
    ) -> str:
        """Store a new turn, which a worker will run.

        Args:
            session_id: The id of the session, new or existing.
            prompt: The text of the user, or a list of strings and blocks, as for
                `AmplifierSession.execute`.
            turn_id: Your own name for the turn, in the form of a session id. Starting it again
                with the same session and prompt does nothing.
            queue: If the session has an open turn, wait for it and all turns in the queue, in the
                order of their starts.
            priority: From 1 to 5. Of two turns that wait for a worker, the one with the lower
                number starts first.
            delay: Seconds to wait before the turn may start.
            deadline: Seconds from now after which the turn fails, even while it is running. A turn
                that is still waiting fails when a worker takes it.
            result_type: The type of the answer, as for `AmplifierSession.execute`. Its JSON Schema
                is stored, and `TurnStatus.answer` is JSON. Pass the type to `result` as well.
            notify: An address (http or https). When the turn has ended, it receives the
                `TurnStatus` as JSON in a POST, at least once. The POST is repeated until it
                succeeds.

        Returns:
            The turn's id.

        Raises:
            SessionBusyError: The session has an open turn, and ``queue`` is False.
            TurnConflictError: The id belongs to another turn.
            PlanError: The session id is invalid.
            ValueError: The turn id, the address or a number is invalid, or the prompt has NUL or
                lone surrogates.
            TypeError: ``result_type`` has no JSON Schema.
        """
        validate_session_id(session_id)
        if (
            type(priority) is not int
            or not 1 <= priority <= 5
            or not _is_seconds(delay)
            or (deadline is not None and not (_is_seconds(deadline) and deadline > delay))
        ):
            raise ValueError(
                "priority must be 1 to 5, delay a number of seconds, at most a hundred years, and "
                f"deadline such a number above delay, or None; got priority={priority!r:.80}, "
                f"delay={delay!r:.80}, deadline={deadline!r:.80}"
            )
        now = time.time()
        policy = TurnPolicy(
            priority=priority,
            due_at=now + delay if delay else None,
            deadline_at=None if deadline is None else now + deadline,
            notify=notify,
        )
        if notify is not None and not _ADDRESS.fullmatch(notify):
            raise ValueError(
                "notify must be an address that begins with http:// or https://, got "
                f"{notify!r:.80}"
            )
        stored = stored_prompt(
            prompt, None if result_type in (None, str) else _format_of(result_type).schema
        )
        if turn_id is not None:
            _check_turn_id(turn_id)
        name = str(uuid.uuid4()) if turn_id is None else turn_id
        await self._do(lambda: self._turns.start(session_id, stored, name, queue, policy))
        return name

    async def status(self, turn_id: str) -> TurnStatus:
        """Return the current state of a turn.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _known_form(turn_id)
        return await self._do(lambda: self._turns.status(known))

    async def list(
        self,
        *,
        state: TurnState | None = None,
        session: str | None = None,
        since: datetime | float | None = None,
        limit: int = 100,
    ) -> _Statuses:
        """Return turns, the latest one first.

        Args:
            state: Return only turns in this state.
            session: Return only turns of this session.
            since: Return only turns that were started at this moment or later. A number is seconds
                since 1970.
            limit: The maximum number of turns.

        Raises:
            ValueError: There is no such state.
        """
        if state is not None and state not in get_args(TurnState):
            raise ValueError(
                f"state must be one of {', '.join(get_args(TurnState))}; got {state!r:.80}"
            )
        if isinstance(since, datetime):
            since = since.timestamp()
        if session is not None and session != storable_text(session, allows_nul=False):
            return []
        return await self._do(lambda: self._turns.find(state, session, since, limit))

    async def counts(self) -> TurnCounts:
        """Count all turns by state, and return the age of the oldest open one.

        This reads every turn.
        """
        return await self._do(self._turns.counts)

    @overload
    async def result(self, turn_id: str) -> str: ...
    @overload
    async def result(self, turn_id: str, *, result_type: type[T]) -> T: ...
    @overload
    async def result(self, turn_id: str, *, result_type: Any) -> Any: ...
    async def result(self, turn_id: str, *, result_type: Any = str) -> Any:
        """Wait for a turn's answer, from any process. Use a cancel scope to limit the wait.

        Args:
            turn_id: The turn.
            result_type: The type that the turn was started with.

        Raises:
            ResultError: The answer has another type.
            TurnFailedError: The turn ended with an error.
            TurnStoppedError: The turn was stopped.
            TurnHeldError: For the duration of a lease, no worker could continue the turn.
                `TurnStatus.error` has the reason.
            UnknownTurnError: There is no such turn.
        """
        held_since: float | None = None
        known = _known_form(turn_id)
        while True:
            status = await self._do(lambda: self._turns.status(known, questions=False))
            now = anyio.current_time()
            held_since = (held_since or now) if status.state == "held" else None
            if status.is_final or (held_since is not None and now - held_since >= self._lease):
                answer = answer_of(status)
                return (
                    answer
                    if result_type in (None, str)
                    else _format_of(result_type).read_text(answer)
                )
            await anyio.sleep(self._poll)

    def watch(self, turn_id: str, *, after: int = 0) -> AsyncIterator[WatchedEvent]:
        """Iterate over the events of a turn until it ends.

        Any number of watchers in any process can iterate, even after the turn has ended.

        Args:
            turn_id: The turn.
            after: Return only events after this position, for a watcher that lost its connection.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        return _Watch(self._turns, self._poll, turn_id, after)

    async def approve(self, turn_id: str, question_id: str, option: str) -> None:
        """Store the answer to a question, even if no worker is running.

        Raises:
            QuestionClosedError: The question isn't open, or doesn't offer this option.
            UnknownTurnError: There is no such turn.
        """
        # Accept both in the form in which status() returns them.
        shown = [storable_text(text, allows_nul=False) for text in (question_id, option)]
        known = _known_form(turn_id)
        await self._do(lambda: self._turns.answer(known, *shown))

    async def stop(
        self, turn_id: str, *, graceful: bool = False, reason: str | None = None
    ) -> None:
        """Request the end of a turn. A turn that has ended stays as it is.

        This returns at once. Use `result` to wait.

        Args:
            turn_id: The turn.
            graceful: True to let running tools finish.
            reason: The reason to show in events.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _known_form(turn_id)
        await self._do(lambda: self._turns.request_stop(known, graceful, reason))

    async def resume(self, turn_id: str) -> None:
        """Continue a held turn with the current plan of the workers. Any other turn stays as it is.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _known_form(turn_id)
        await self._do(lambda: self._turns.resume(known))

    async def release(self, turn_id: str) -> None:
        """Take a running turn away from its worker, so that another one continues it.

        Use this for a worker that is alive but makes no progress. The worker can no longer record
        anything about the turn. A turn that isn't running stays as it is.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _known_form(turn_id)
        await self._do(lambda: self._turns.release(known))

    async def messages(self, session_id: str) -> _Messages:
        """Return the conversation of a session after its latest ended turn, or an empty list."""
        is_possible = session_id == storable_text(session_id, allows_nul=False)
        stored = await self._do(lambda: self._turns.messages(session_id)) if is_possible else []
        return without_compactions(stored)[0]

    async def forget(self, *, older_than: float) -> int:
        """Delete turns that ended this many seconds ago or earlier, with their events.

        The conversations of their sessions are kept.

        Returns:
            The number of deleted turns.

        Raises:
            ValueError: The number is invalid.
        """
        if not _is_seconds(abs(older_than)):
            raise ValueError(
                "older_than must be a number of seconds, at most a hundred years; got "
                f"{older_than!r:.80}"
            )
        before = time.time() - older_than
        return await self._do(lambda: self._turns.forget(before))

    async def forget_session(self, session_id: str) -> bool:
        """Delete a session: its conversation, its schedules, its turns, their steps and events.

        Returns:
            True if there was anything to delete.

        Raises:
            SessionBusyError: The session has an open turn.
        """
        if session_id != storable_text(session_id, allows_nul=False):
            return False
        return await self._do(lambda: self._turns.forget_session(session_id))

    async def schedule(
        self,
        name: str,
        session_id: str,
        prompt: Prompt,
        *,
        every: int,
        first: datetime | float | None = None,
    ) -> None:
        """Start a turn at regular intervals. This replaces a schedule of the same name.

        A due turn waits for earlier turns of its session. A single turn replaces all turns that
        were due while there was no worker or no engine. The id of a turn consists of the name and
        the date.

        Args:
            name: The name, in the form of a session id, at most 170 characters.
            session_id: The session.
            prompt: The prompt, as for `start`.
            every: Whole seconds from one turn to the next.
            first: The time of the first turn. A number is seconds since 1970. The default is
                ``every`` seconds from now. A time in the past sets the phase of the interval.

        Raises:
            PlanError: The session id is invalid.
            ValueError: The name or a number is invalid, or the prompt can't be stored.
        """
        validate_session_id(session_id)
        _check_turn_id(name)
        first = first.timestamp() if isinstance(first, datetime) else first
        if (
            type(every) is not int
            or not 1 <= every <= _MAX_SECONDS
            or not _is_seconds(first or 0)
            or len(name) > _MAX_NAME_LENGTH
        ):
            raise ValueError(
                "every must be a whole number of seconds from 1 to a hundred years, first a moment "
                f"or None, and the name of a schedule at most {_MAX_NAME_LENGTH} characters; got "
                f"every={every!r:.80}, first={first!r:.80}, name={name!r:.80}"
            )
        now = time.time()
        due = (
            now + every
            if first is None
            else max(first, first + every * math.ceil((now - first) / every))
        )
        wanted = Schedule(
            name=name,
            session_id=session_id,
            prompt=stored_prompt(prompt),
            every=every,
            next_at=math.ceil(due),
        )
        await self._do(lambda: self._turns.schedule(wanted))

    async def schedules(self) -> _Schedules:
        """Return all schedules, by name."""
        return sorted(await self._do(self._turns.schedules), key=lambda schedule: schedule.name)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule. Turns that it has already started continue.

        Returns:
            True if there was one.
        """
        if name != storable_text(name, allows_nul=False):
            return False
        return await self._do(lambda: self._turns.unschedule(name))

    async def work(
        self,
        make_session: SessionFactory,
        *,
        concurrency: int = 10,
        limits: Mapping[str, CallLimit] = MappingProxyType({}),
        drain: float = 0.0,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Run turns until cancelled. Then hand running turns over to other workers.

        Args:
            make_session: Makes the session of a turn.
            concurrency: The number of turns that run at the same time.
            limits: Limits for the calls of all turns of this worker, keyed by tool name or
                ``model``.
            drain: Seconds for which running model calls and tool calls may continue after a
                cancellation. No new ones start, and each turn is handed over once none of its calls
                is running.
            task_status: Notified once the worker accepts turns.

        Raises:
            EngineUnavailableError: The database is no longer reachable. The turns continue on other
                workers, or on this one after a restart.
            EngineClosedError: The engine's block has exited.
            TypeError: ``make_session`` isn't a function. A plan or session can't be shared between
                processes.
            ValueError: The concurrency is less than 1.
        """
        factory: object = make_session
        if not callable(factory):
            example = "lambda session_id: AmplifierSession(plan, session_id=session_id)"
            raise TypeError(
                "expected a function that makes the session of a turn, because every worker "
                f"process makes its own, got {type(factory).__name__}; write {example}"
            )
        if concurrency < 1:
            raise ValueError(
                f"concurrency must be at least 1, got {concurrency}: it is the number of turns run "
                "at a time"
            )
        leaving, ended = anyio.Event(), anyio.Event()
        duty = Duty(
            make_session=make_session,
            concurrency=concurrency,
            limits=CallLimits(limits),
            leaving=leaving,
            on_start=task_status.started,
        )
        scope = anyio.CancelScope(shield=drain > 0)

        async def run() -> None:
            with scope:
                try:
                    await self._work(duty)
                finally:
                    ended.set()

        async with raises_one_error(), anyio.create_task_group() as group:
            group.start_soon(run)
            if is_measured():
                group.start_soon(self._report)
            try:
                await ended.wait()
            finally:
                leaving.set()
                with anyio.move_on_after(drain, shield=True):
                    await ended.wait()
                scope.cancel()
            group.cancel_scope.cancel()

    async def _report(self) -> None:
        """Report figures about all turns to OpenTelemetry until cancelled.

        Every worker reports the same figures.
        """
        while True:
            counts = await self._do(lambda: self._turns.counts(only_open=True))
            note_counts(counts.states, counts.oldest)
            await anyio.sleep(max(self._lease, _REPORT_SECONDS))


class InterruptedWorker(Exception):
    """Carries a KeyboardInterrupt to the task that runs the worker."""


@asynccontextmanager
async def raises_one_error() -> AsyncIterator[None]:
    """Raise the single error that ended a worker, not the exception group of its tasks."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors, rest = group.split((Exception, KeyboardInterrupt))
        if rest is not None or errors is None:
            raise
        error: BaseException = errors.subgroup((KeyboardInterrupt, InterruptedWorker)) or errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise (
            KeyboardInterrupt() if isinstance(error, InterruptedWorker) else error
        ) from error.__cause__


def _format_of(result_type: Any) -> Any:
    from amplifier.models.answers import answer_format  # noqa: PLC0415 — belongs to an extra

    return answer_format(result_type)


def stored_prompt(prompt: Prompt, schema: dict[str, Any] | None = None) -> str:
    """Return a prompt as the text that engines store.

    A prompt in blocks, or with the schema of a typed answer, is stored as JSON after a marker.

    Raises:
        TypeError: The value isn't a prompt.
        ValueError: A database can't store the prompt.
    """
    parsed = read_prompt(prompt)
    if schema is not None:
        return BLOCKS + to_json({"prompt": parsed, "schema": schema})
    if isinstance(parsed, list) or parsed.startswith(BLOCKS):
        return BLOCKS + to_json(parsed)
    if parsed != storable_text(parsed, allows_nul=False):
        raise ValueError(
            "a prompt must be text without NUL and lone surrogates, which databases do not store, "
            f"got {parsed!r:.80}; remove them from the text, or decode it with errors='replace'"
        )
    return parsed


def _is_seconds(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _MAX_SECONDS
    )


def _check_turn_id(turn_id: object) -> None:
    if not isinstance(turn_id, str):
        raise TypeError(f"a turn_id must be a str, got {type(turn_id).__name__}: {turn_id!r:.80}")
    try:
        validate_session_id(turn_id)
    except PlanError:
        raise ValueError(
            "a turn_id must have the form of a session id, 1 to 200 of: letters, digits, '.', '_', "
            f"':', '-', not beginning with '.'; got {turn_id!a:.80}"
        ) from None


def _known_form(turn_id: Any) -> str:
    """Return the id of a turn in the form in which it is stored.

    Raises:
        UnknownTurnError: The id can't be stored, so no turn has it.
    """
    if isinstance(turn_id, str) and turn_id == storable_text(turn_id, allows_nul=False):
        return turn_id
    raise unknown_turn_error(turn_id)


class _Watch:
    """Iterator over the events of one turn. Unlike an async generator it needn't be closed."""

    def __init__(self, turns: Turns, poll: float, turn_id: str, after: int) -> None:
        self._turns = turns
        self._poll = poll
        self._turn_id = turn_id
        self._after = after
        self._offset = 0
        self._position = 0
        self._read: deque[WatchedEvent] = deque()

    def __aiter__(self) -> AsyncIterator[WatchedEvent]:
        return self

    async def __anext__(self) -> WatchedEvent:
        turn_id = _known_form(self._turn_id)
        while not self._read:
            events, self._offset, is_over = await self._turns.database(
                lambda: self._turns.events_after(turn_id, self._offset, self._position)
            )
            if events:
                self._position = events[-1].position
                self._read.extend(event for event in events if event.position > self._after)
            elif is_over:
                raise StopAsyncIteration
            else:
                await anyio.sleep(self._poll)
        return self._read.popleft()


def answer_of(status: TurnStatus) -> str:
    """Return the answer of a completed turn, or raise the error for its state.

    Raises:
        TurnFailedError: The turn failed.
        TurnStoppedError: The turn was stopped.
        TurnHeldError: The turn is held.
    """
    turn_id = status.turn_id
    if status.state == "completed":
        return status.answer or ""
    if status.state == "stopped":
        raise TurnStoppedError(
            f"turn {turn_id!r} was stopped before it had an answer", turn_id=turn_id
        )
    if status.state == "held":
        raise TurnHeldError(f"turn {turn_id!r} is held: {status.error}", turn_id=turn_id)
    raise TurnFailedError(
        f"turn {turn_id!r} failed with {status.error_type}: {status.error}",
        turn_id=turn_id,
        error_type=status.error_type or "",
    )
