"""The interface of an engine: start a turn, watch it, answer its questions, stop it, get its result; and run workers."""

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

_MOST_SECONDS: Final = 100 * 365 * 86400.0
_LONGEST_NAME: Final = 170
"""Of a schedule; the ids of its turns are longer by the date."""

SessionFactory: TypeAlias = Callable[[str], AmplifierSession]
"""Makes the session of an id, not opened; called by workers for every attempt of a turn, on their event loop.

It is a plain function and has to be quick. What it raises ends the turn.

Its context has to begin empty, as context-simple does: the engine keeps the conversation and hands it over.
"""

_REPORT_SECONDS = 10.0
_ADDRESS = re.compile(r"https?://[!-~]{1,4000}")

_Statuses: TypeAlias = list[TurnStatus]  # `DurableEngine.list` hides the name of the type
_Messages: TypeAlias = list[dict[str, Any]]
_Schedules: TypeAlias = "list[Schedule]"


@attrs.frozen(kw_only=True)
class Duty:
    """What a worker is to do: run turns until cancelled.

    Attributes:
        make_session: Makes the session of a turn.
        concurrency: Turns that run at the same time.
        limits: Of its calls.
        leaving: Once it is set, begin nothing, and return when no running turn has a running call.
        on_start: To be called when turns are accepted.
    """

    make_session: SessionFactory
    concurrency: int
    limits: CallLimits
    leaving: anyio.Event
    on_start: Callable[[], None]


class DurableEngine:
    """Runs turns so that they survive the processes that run them; `open_engine` opens one.

    An application starts turns and looks after them; workers, in the same process or others, run them. A turn belongs to a
    session; a session has one open turn at a time, and the engine keeps its conversation between turns. Every method raises
    `EngineClosedError` when the engine has been closed, and `EngineUnavailableError` when it cannot be asked, or nothing was stored.
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
        """Hand a turn over; on return it is stored, and a worker will run it.

        Args:
            session_id: The session, new or not.
            prompt: The text of the user, or a list of texts and blocks, as for `AmplifierSession.execute`.
            turn_id: A name of the caller's for the turn, in the form of a session id. Starting it again with the same session and
                prompt does nothing.
            queue: If the session has an open turn, wait behind it and those that wait already, in the order of their starts.
            priority: 1 is begun before 5, if both wait for a worker.
            delay: Seconds before which it is not begun.
            deadline: Seconds after which it fails, counted from now, whatever it does then; one that waits fails when its turn comes.
            result_type: The type of the answer, as for `AmplifierSession.execute`. Its JSON Schema is stored, and `TurnStatus.answer` is
                JSON; give `result` the type as well.
            notify: An address (http or https) that gets the `TurnStatus` as JSON in a POST when the turn has ended, at least once; again
                later if it does not answer with a success.

        Returns:
            The turn's id.

        Raises:
            SessionBusyError: The session has an open turn, and this one was not to be queued.
            TurnConflictError: The id belongs to another turn.
            PlanError: The session id is wrong.
            ValueError: The turn id or the address is wrong, the prompt has NUL or lone surrogates, or one of the numbers makes no sense.
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
                "priority must be 1 to 5, delay a number of seconds, at most a hundred years, and deadline such a number above delay, or "
                f"None; got priority={priority!r:.80}, delay={delay!r:.80}, deadline={deadline!r:.80}"
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
                f"notify must be an address that begins with http:// or https://, got {notify!r:.80}"
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
        """What a turn does now.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _found_form(turn_id)
        return await self._do(lambda: self._turns.status(known))

    async def list(
        self,
        *,
        state: TurnState | None = None,
        session: str | None = None,
        since: datetime | float | None = None,
        limit: int = 100,
    ) -> _Statuses:
        """Turns, the one that was started last first.

        Args:
            state: Only those in this state.
            session: Only those of this session.
            since: Only those that were started at this moment or later; a number is seconds since 1970.
            limit: At most so many.

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
        """How many turns there are, by state, and how long the oldest open one has been open; reads all of them."""
        return await self._do(self._turns.counts)

    @overload
    async def result(self, turn_id: str) -> str: ...
    @overload
    async def result(self, turn_id: str, *, result_type: type[T]) -> T: ...
    @overload
    async def result(self, turn_id: str, *, result_type: Any) -> Any: ...
    async def result(self, turn_id: str, *, result_type: Any = str) -> Any:
        """Wait for a turn's answer, from any process; use a cancel scope to limit the wait.

        Args:
            turn_id: The turn.
            result_type: The type that the turn was started with.

        Raises:
            ResultError: The answer has another type.
            TurnFailedError: It ended with an error.
            TurnStoppedError: It was stopped.
            TurnHeldError: No worker could go on with it for the time of a lease, see `TurnStatus.error`.
            UnknownTurnError: There is no such turn.
        """
        held_since: float | None = None
        known = _found_form(turn_id)
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
        """The events of a turn, until it ends; any number of watchers, in any process, also afterwards.

        Args:
            turn_id: The turn.
            after: Only events behind this position, for a watcher that has lost its connection.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        return _Watch(self._turns, self._poll, turn_id, after)

    async def approve(self, turn_id: str, question_id: str, option: str) -> None:
        """Answer a question; on return the answer is stored, whether a worker is there or not.

        Raises:
            QuestionClosedError: It does not wait, or does not offer this option.
            UnknownTurnError: There is no such turn.
        """
        shown = [
            storable_text(text, allows_nul=False) for text in (question_id, option)
        ]  # as status() has them
        known = _found_form(turn_id)
        await self._do(lambda: self._turns.answer(known, *shown))

    async def stop(
        self, turn_id: str, *, graceful: bool = False, reason: str | None = None
    ) -> None:
        """Ask for the end of a turn; returns at once, `result` waits. Nothing happens to a turn that has ended.

        Args:
            turn_id: The turn.
            graceful: Let running tools finish.
            reason: For the events.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _found_form(turn_id)
        await self._do(lambda: self._turns.request_stop(known, graceful, reason))

    async def resume(self, turn_id: str) -> None:
        """Let a turn that is held go on, with the plan that workers have now. Nothing happens to others.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _found_form(turn_id)
        await self._do(lambda: self._turns.resume(known))

    async def release(self, turn_id: str) -> None:
        """Take a running turn away from its worker, whatever that does, and let another one go on. Nothing happens to others.

        For a worker that beats and gets nowhere. It cannot record anything about the turn any more.

        Raises:
            UnknownTurnError: There is no such turn.
        """
        known = _found_form(turn_id)
        await self._do(lambda: self._turns.release(known))

    async def messages(self, session_id: str) -> _Messages:
        """The conversation of a session after its latest ended turn; empty if there is none."""
        is_possible = session_id == storable_text(session_id, allows_nul=False)
        stored = await self._do(lambda: self._turns.messages(session_id)) if is_possible else []
        return without_compactions(stored)[0]

    async def forget(self, *, older_than: float) -> int:
        """Forget turns that ended so many seconds ago or earlier, with their events; their conversations stay.

        Returns:
            How many.

        Raises:
            ValueError: The number makes no sense.
        """
        if not _is_seconds(abs(older_than)):
            raise ValueError(
                f"older_than must be a number of seconds, at most a hundred years; got {older_than!r:.80}"
            )
        before = time.time() - older_than
        return await self._do(lambda: self._turns.forget(before))

    async def forget_session(self, session_id: str) -> bool:
        """Delete all there is of a session: its conversation, its turns with their steps and events, and its schedules.

        Returns:
            Whether there was anything.

        Raises:
            SessionBusyError: It has an open turn.
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
        """Start a turn again and again; one that is due waits behind those of its session. Replaces a schedule of this name.

        Turns that were due while there was no worker, or no engine, are made up for by one. The id of a turn is the name with the date.

        Args:
            name: In the form of a session id, at most 170 characters.
            session_id: The session.
            prompt: As for `start`.
            every: Whole seconds from one turn to the next.
            first: When the first one is due; a number is seconds since 1970. After ``every`` seconds by default. In the past it gives
                the rhythm.

        Raises:
            PlanError: The session id is wrong.
            ValueError: The name is wrong, the prompt cannot be stored, or one of the numbers makes no sense.
        """
        validate_session_id(session_id)
        _check_turn_id(name)
        first = first.timestamp() if isinstance(first, datetime) else first
        if (
            type(every) is not int
            or not 1 <= every <= _MOST_SECONDS
            or not _is_seconds(first or 0)
            or len(name) > _LONGEST_NAME
        ):
            raise ValueError(
                "every must be a whole number of seconds from 1 to a hundred years, first a moment or None, and the name of a schedule at "
                f"most {_LONGEST_NAME} characters; got every={every!r:.80}, first={first!r:.80}, name={name!r:.80}"
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
        """All schedules."""
        return sorted(await self._do(self._turns.schedules), key=lambda each: each.name)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; turns that it has started go on.

        Returns:
            Whether there was one.
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
        """Run turns until cancelled; those that are running then are handed over to other workers.

        Args:
            make_session: Makes the session of a turn.
            concurrency: Turns that run at the same time.
            limits: Of the calls of all its turns, by the name of a tool, or ``model``.
            drain: Seconds for which model calls and tool calls may go on after a cancellation, so that none is interrupted; no new
                ones begin, and each turn is handed over when it has no running call.
            task_status: Is notified when turns are accepted.

        Raises:
            EngineUnavailableError: The engine cannot be reached any more; its turns go on with other workers, or with this one
                when it is started again.
            EngineClosedError: The engine's block was left.
            TypeError: The first is a plan or a session, which would belong to one process, and no function that makes one.
            ValueError: The concurrency is less than 1.
        """
        factory: object = make_session  # of any kind
        if not callable(factory):
            example = "lambda session_id: AmplifierSession(plan, session_id=session_id)"
            raise TypeError(
                "expected a function that makes the session of a turn, because every worker process makes its own, got "
                f"{type(factory).__name__}; write {example}"
            )
        if concurrency < 1:
            raise ValueError(
                f"concurrency must be at least 1, got {concurrency}: it is the number of turns run at a time"
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
        """Pass figures about all turns to OpenTelemetry, for ever; every worker has the same ones."""
        while True:
            counts = await self._do(lambda: self._turns.counts(only_open=True))
            note_counts(counts.states, counts.oldest)
            await anyio.sleep(max(self._lease, _REPORT_SECONDS))


class InterruptedWorker(Exception):
    """A KeyboardInterrupt on its way to the task that runs the worker."""


@asynccontextmanager
async def raises_one_error() -> AsyncIterator[None]:
    """Let the one error that ends a worker leave as itself, and not as a group of the tasks that met it."""
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
    from amplifier.models.answers import answer_format  # noqa: PLC0415 — takes the packages of an extra

    return answer_format(result_type)


def stored_prompt(given: Prompt, schema: dict[str, Any] | None = None) -> str:
    """A prompt as the text that engines store; one in blocks, or with the schema of a typed answer, is JSON behind a mark.

    Raises:
        TypeError: It is no prompt.
        ValueError: A database cannot store it.
    """
    prompt = read_prompt(given)
    if schema is not None:
        return BLOCKS + to_json({"prompt": prompt, "schema": schema})
    if isinstance(prompt, list) or prompt.startswith(BLOCKS):
        return BLOCKS + to_json(prompt)
    if prompt != storable_text(prompt, allows_nul=False):
        raise ValueError(
            f"a prompt must be text without NUL and lone surrogates, which databases do not store, got {prompt!r:.80}; remove them "
            "from the text, or decode it with errors='replace'"
        )
    return prompt


def _is_seconds(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _MOST_SECONDS
    )


def _check_turn_id(turn_id: object) -> None:
    if not isinstance(turn_id, str):
        raise TypeError(f"a turn_id must be a str, got {type(turn_id).__name__}: {turn_id!r:.80}")
    try:
        validate_session_id(turn_id)
    except PlanError:
        raise ValueError(
            "a turn_id must have the form of a session id, 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with "
            f"'.'; got {turn_id!a:.80}"
        ) from None


def _found_form(turn_id: Any) -> str:
    """The id, if a turn can have it.

    Raises:
        UnknownTurnError: It cannot be stored, so it cannot be asked for.
    """
    if isinstance(turn_id, str) and turn_id == storable_text(turn_id, allows_nul=False):
        return turn_id
    raise unknown_turn_error(turn_id)


class _Watch:
    """The events of one turn; no async generator, which someone would have to close."""

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
        turn_id = _found_form(self._turn_id)
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
    """The answer of a turn that does not go on.

    Raises:
        TurnFailedError: It has none, because it failed; or was stopped, or is held.
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
