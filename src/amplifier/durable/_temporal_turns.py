"""Turns on a Temporal server: what clients ask the workflows of sessions and turns, and what workers record in them."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import attrs
import orjson
import temporalio.client as temporal
from temporalio import activity
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from amplifier.live import Question

from ._errors import (
    DurableError,
    TurnLost,
    UnknownTurnError,
    busy_error,
    check_answer,
    check_same_turn,
    unknown_turn_error,
)
from ._reporting import post
from ._suspects import Settings
from ._temporal_server import Refused, Server, WorkflowGone
from ._temporal_workflows import (
    BUSY,
    CLOSED,
    CONFLICT,
    LOST,
    MEMO,
    NOTIFY,
    START_TURN,
    STOPPED,
    ScheduledWorkflow,
    SessionWorkflow,
    TurnWorkflow,
    session_workflow_id,
    turn_workflow_id,
)
from ._values import (
    OPEN,
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
    storable_key,
    storable_text,
    watched_events,
)

logger = logging.getLogger("amplifier.durable")

_MOMENT: Final = 0.02
"""Seconds until a session may have heard that its turn has begun or ended."""
_LARGEST: Final = 1_500_000
"""Characters of JSON in one value; the server takes two megabytes, in which quotes are escaped."""
_LARGEST_BATCH: Final = 250_000
_BATCHES_BETWEEN_CHECKS: Final = 50
_LONGEST_NAME: Final = 100

# ── for clients ───────────────────────────────────────────────────────────────────────────────────


class TemporalTurns:
    """The turns on a server, for clients.

    Args:
        server: The server.
        queue: The task queue of the workflows.
        settings: Of the engine.
    """

    def __init__(self, server: Server, queue: str, settings: Settings) -> None:
        self.server = server
        self.queue = queue
        self.settings = settings

    async def start(self, session_id: str, prompt: str, turn_id: str, queue: bool, policy: TurnPolicy) -> None:
        wanted = self._wanted(turn_id, prompt, policy)
        pause = _MOMENT
        while not await self._is_there(turn_id, session_id, prompt):
            try:
                if not await self.server.update_with_start(
                    lambda: self._session(session_id), SessionWorkflow.start_turn, [wanted, queue]
                ):
                    return
            except Refused as refused:
                if refused.kind == CONFLICT and await self._is_there(turn_id, session_id, prompt):
                    return
                if refused.kind != BUSY:
                    raise DurableError(f"turn {turn_id!r} could not be started: {refused}") from refused
                await self._check_ended(session_id, str(refused))
            await anyio.sleep(pause)
            pause = min(pause * 2, 1.0)  # a session takes a limited number of requests

    def _session(self, session_id: str) -> Any:
        """Starts the workflow of a session, unless it runs."""
        return WithStartWorkflowOperation(
            SessionWorkflow.run,
            {"session_id": session_id, "queue": self.queue, "number": 0, "messages": "[]"},
            id=session_workflow_id(self.queue, session_id),
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            # A worker that dies with a workflow's task in hand delays it by that much.
            task_timeout=timedelta(seconds=min(max(self.settings.lease, 1.0), 10.0)),
        )

    def _wanted(self, turn_id: str, prompt: str, policy: TurnPolicy) -> dict[str, Any]:
        about = {"turn_id": turn_id, "prompt": prompt, "lease": self.settings.lease, "poll": self.settings.poll}
        return {**about, **attrs.asdict(policy)}

    @activity.defn(name=START_TURN)
    async def start_scheduled(self, session_id: str, prompt: str, turn_id: str) -> None:
        """Start a turn for a schedule; in the asyncio thread."""
        given = [self._wanted(turn_id, prompt, TurnPolicy()), True]
        await self.server.send_update_with_start(
            self._session(session_id), SessionWorkflow.start_turn, given, f"scheduled-{turn_id}"
        )

    @staticmethod
    @activity.defn(name=NOTIFY)
    async def notify(url: str, status: dict[str, Any]) -> None:
        """Call back the one who started a turn; in the asyncio thread."""
        await post(url, _read_status(status))

    async def schedule(self, wanted: Schedule) -> None:
        await self.unschedule(wanted.name)
        prefix = self._schedule_id("")
        every = timedelta(seconds=wanted.every)
        planned = temporal.Schedule(
            action=temporal.ScheduleActionStartWorkflow(
                ScheduledWorkflow.run,
                args=[wanted.session_id, wanted.prompt, prefix],
                id=prefix + wanted.name,
                task_queue=self.queue,
            ),
            spec=temporal.ScheduleSpec(
                intervals=[temporal.ScheduleIntervalSpec(every, timedelta(seconds=wanted.next_at % wanted.every))],
                start_at=datetime.fromtimestamp(wanted.next_at, UTC),
            ),
            # Of the turns that were due while the server was away, or no one ran the workflow, one is started.
            policy=temporal.SchedulePolicy(
                overlap=temporal.ScheduleOverlapPolicy.SKIP, catchup_window=max(every, timedelta(seconds=10))
            ),
        )
        about = {MEMO: attrs.asdict(wanted)}
        try:
            await self.server.call(
                lambda: self.server.client.create_schedule(prefix + wanted.name, planned, memo=about)
            )
        except temporal.ScheduleAlreadyRunningError:  # of another client, or of this one, and the answer was lost
            await self.schedule(wanted)

    async def schedules(self) -> list[Schedule]:

        async def read() -> list[Schedule]:
            found: list[Schedule] = []
            async for each in await self.server.client.list_schedules():
                if each.id.startswith(self._schedule_id("")) and each.info is not None:
                    shown: dict[str, Any] = (await each.memo())[MEMO]
                    if due := each.info.next_action_times:
                        shown["next_at"] = due[0].timestamp()
                    found.append(Schedule(**shown))
            return found

        return await self.server.call(read)

    async def unschedule(self, name: str) -> bool:
        handle = self.server.client.get_schedule_handle(self._schedule_id(name))
        try:
            await self.server.call(handle.delete)
        except WorkflowGone:
            return False
        return True

    def _schedule_id(self, name: str) -> str:
        return f"{self.queue}-schedule-{name}"

    async def _check_ended(self, session_id: str, turn_id: str) -> None:
        """Refuse a turn of a session for which it has another one, unless that has just ended."""
        try:
            other = await self.status(turn_id)
        except UnknownTurnError:  # another client is starting it at this moment
            raise busy_error(session_id, turn_id, "queued") from None
        if not other.is_final:
            raise busy_error(session_id, turn_id, other.state)

    async def _is_there(self, turn_id: str, session_id: str, prompt: str) -> bool:
        try:
            found = await self.server.query(turn_workflow_id(self.queue, turn_id), TurnWorkflow.request)
        except WorkflowGone:
            return False
        check_same_turn(turn_id, (session_id, prompt), tuple(found))
        return True

    async def status(self, turn_id: str) -> TurnStatus:
        try:
            found = await self.server.query(turn_workflow_id(self.queue, turn_id), TurnWorkflow.status)
        except WorkflowGone:
            raise unknown_turn_error(turn_id) from None
        return _read_status(found)

    async def find(self, state: str | None, session: str | None, since: float | None, limit: int) -> list[TurnStatus]:
        which = "" if state is None else f" AND ExecutionStatus {'=' if state in OPEN else '!='} 'Running'"
        if since is not None:
            which += f" AND StartTime >= '{datetime.fromtimestamp(since, UTC).isoformat()}'"
        found = await self._listed(
            which, lambda each: state in (None, each.state) and session in (None, each.session_id), limit
        )
        return sorted(found, key=lambda each: each.started, reverse=True)

    async def counts(self, *, only_open: bool = False) -> TurnCounts:
        which = " AND ExecutionStatus = 'Running'" if only_open else ""
        found = await self._listed(which, lambda each: True, sys.maxsize)
        opened = [each for each in found if not each.is_final]
        return TurnCounts(
            states=Counter(each.state for each in found),
            oldest=max((time.time() - each.started for each in opened), default=0.0),
            attempts=sum(each.attempt for each in opened),
            takeovers=sum(each.takeovers for each in opened),
        )

    async def _listed(self, which: str, keep: Callable[[TurnStatus], bool], limit: int) -> list[TurnStatus]:
        """Turns as the server's index has them: it knows times and what is open, the memos of the workflows have the rest."""
        query = f"WorkflowType = 'amplifier-turn' AND TaskQueue = '{self.queue}'{which}"
        prefix = turn_workflow_id(self.queue, "")

        async def read() -> list[TurnStatus]:
            found: list[TurnStatus] = []
            async for each in self.server.client.list_workflows(query):
                shown: dict[str, Any] = (await each.memo())[MEMO]
                shown |= {"turn_id": each.id.removeprefix(prefix), "started": each.start_time.timestamp()}
                ended = None if each.close_time is None else each.close_time.timestamp()
                found += filter(keep, [TurnStatus(**shown, ended=ended)])
                if len(found) >= limit:
                    break
            return found

        return await self.server.call(read)

    async def forget(self, before: float) -> int:
        raise DurableError(
            "Temporal forgets workflows that have ended after the retention period of the namespace; change that instead: "
            "temporal operator namespace update --retention 30d"
        )

    async def events_after(self, turn_id: str, position: int) -> tuple[list[WatchedEvent], TurnStatus]:
        status = await self.status(turn_id)  # first: events of a turn that has ended are all there
        batches = await self.server.query(turn_workflow_id(self.queue, turn_id), TurnWorkflow.events_after, position)
        return watched_events(batches, position), status

    async def answer(self, turn_id: str, question_id: str, option: str) -> None:
        while True:
            try:
                await self.server.update(
                    turn_workflow_id(self.queue, turn_id), TurnWorkflow.approve, question_id, option
                )
            except WorkflowGone as gone:  # there is no such turn, or it has ended
                check_answer(await self.status(turn_id), question_id, option)
                raise DurableError(
                    f"the workflow of turn {turn_id!r} was ended from outside; nothing was stored"
                ) from gone
            except Refused as refused:
                if refused.kind != CLOSED:
                    raise DurableError(f"turn {turn_id!r} did not take an answer: {refused}") from refused
                check_answer(await self.status(turn_id), question_id, option)  # else it waits again by now
            else:
                return

    async def request_stop(self, turn_id: str, graceful: bool, reason: str | None) -> None:
        text = None if reason is None else storable_text(reason, allows_nul=True)
        await self._signal(turn_id, TurnWorkflow.stop, {"graceful": graceful, "reason": text})

    async def resume(self, turn_id: str) -> None:
        await self._signal(turn_id, TurnWorkflow.resume)

    async def release(self, turn_id: str) -> None:
        await self._signal(turn_id, TurnWorkflow.release)

    async def _signal(self, turn_id: str, signal: Any, *args: Any) -> None:
        try:
            await self.server.signal(turn_workflow_id(self.queue, turn_id), signal, *args)
        except WorkflowGone:
            await self.status(turn_id)  # nothing happens to a turn that has ended

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        while True:
            try:
                found = await self.server.query(
                    session_workflow_id(self.queue, session_id), SessionWorkflow.conversation
                )
            except WorkflowGone:
                return []
            open_turn = found["open_turn"]
            if open_turn is None or not (await self.status(open_turn)).is_final:
                messages: list[dict[str, Any]] = orjson.loads(found["messages"])
                return messages
            await anyio.sleep(_MOMENT)  # the session has not heard of the end of its turn yet


def _read_status(found: dict[str, Any]) -> TurnStatus:
    return TurnStatus(**{**found, "questions": tuple(read_question(each) for each in found["questions"])})


# ── for workers ───────────────────────────────────────────────────────────────────────────────────


class TurnRecord:
    """Records one attempt of a turn, as `TurnStore` does.

    Args:
        server: The server.
        queue: The task queue of its workflow.
        turn_id: The turn.

    Attributes:
        outcome: How the turn ended, for its workflow.
    """

    def __init__(self, server: Server, queue: str, turn_id: str) -> None:
        self._server = server
        self._workflow = turn_workflow_id(queue, turn_id)
        self._updates = anyio.Semaphore(5)  # the server allows ten at a time
        self._batches = 0
        self._takes_events = True
        self._attempt: int | None = None
        self.outcome: dict[str, Any] | None = None

    async def claim(self, run_number: int, attempt: int, worker: str, queue: str) -> ClaimedTurn:
        """Take the turn for a worker.

        Raises:
            TurnLost: Another worker has it, or it has ended.
        """
        found = await self._update(TurnWorkflow.claim, run_number, attempt, worker, queue)
        self._attempt = found["attempt"]
        results: dict[str, Any] = {}
        place = 0
        while page := await self._server.query(self._workflow, TurnWorkflow.results, place):
            place += len(page)
            results |= {key: orjson.loads(result) for key, result in page}
        return ClaimedTurn(
            **{
                **found,
                "messages": orjson.loads(found["messages"]),
                "started": Counter(found["started"]),
                "stop": None if found["stop"] is None else StopRequest(**found["stop"]),
            },
            results=results,
        )

    # ── steps ──

    async def begun(self) -> dict[str, Any]:
        """What a worker has to know before it claims a turn that has begun: its session, its plan, and how many workers died with it."""
        found: dict[str, Any] = await self._server.query(self._workflow, TurnWorkflow.begun)
        return found

    async def hold(self, attempt: int, problem: str) -> None:
        """Note that a worker came to run the turn and has another plan."""
        await self._signal(TurnWorkflow.hold, attempt, problem)

    async def begin_step(self, turn: ClaimedTurn, step: StepName, plan: Plan | None) -> StopRequest | None:
        try:
            await self._update(TurnWorkflow.begin_step, turn.attempt, storable_key(step.key), plan and dict(plan))
        except Refused as stopped:
            return StopRequest(**orjson.loads(str(stopped)))
        return None

    async def finish_step(
        self, turn: ClaimedTurn, step: StepName, result: str, plan: Plan | None
    ) -> StopRequest | None:
        if len(result) > _LARGEST:
            raise DurableError(
                f"the result of step {step.key!r} has {len(result):,} characters; Temporal keeps at most {_LARGEST:,} in one value: "
                "let the tool return less, or use an engine on a database"
            )
        name = storable_text(f"{step.kind} {step.name}".strip()[:_LONGEST_NAME], allows_nul=False)
        await self._signal(name, turn.attempt, storable_key(step.key), result, plan and dict(plan))
        return None

    async def close(self) -> None:
        """Hand the turn over, unless it has ended."""
        if self._attempt is not None and self.outcome is None:
            try:
                await self._signal(TurnWorkflow.leave, self._attempt)
            except (DurableError, TurnLost) as error:
                logger.info("%s could not be notified that its worker leaves: %s", self._workflow, error)

    # ── questions and events ──

    async def ask(self, turn: ClaimedTurn, question: Question) -> str | None:
        answer: str | None = await self._update(TurnWorkflow.ask, turn.attempt, attrs.asdict(question))
        return answer

    async def withdraw(self, turn: ClaimedTurn, question_id: str) -> None:
        await self._signal(TurnWorkflow.withdraw, turn.attempt, question_id)

    async def add_events(self, turn: ClaimedTurn, last_position: int, events: list[str]) -> None:
        """Store events for watchers; none any more when the history is so long that it would end the turn."""
        position = last_position - len(events)
        batch: list[str] = []
        for event in events:
            batch.append(event)
            position += 1
            if position == last_position or sum(map(len, batch)) > _LARGEST_BATCH:
                if self._batches % _BATCHES_BETWEEN_CHECKS == _BATCHES_BETWEEN_CHECKS - 1:
                    self._takes_events = await self._server.query(self._workflow, TurnWorkflow.takes_events)
                self._batches += 1
                if self._takes_events:
                    text = f"[{','.join(batch)}]"
                    await self._signal(TurnWorkflow.add_events, turn.attempt, position, text)
                batch = []

    async def finish(self, turn: ClaimedTurn, outcome: Outcome, last_position: int, events: list[str]) -> None:
        """End a turn, or hold it; the outcome is what the turn's activity returns, with the last events if they are not too many."""
        found = attrs.asdict(outcome)
        if sum(map(len, events)) > _LARGEST_BATCH:
            await self.add_events(turn, last_position, events)
        elif events and self._takes_events:
            found["events"] = (last_position, turn.attempt, f"[{','.join(events)}]")
        for name in ("answer", "error_type", "error"):
            if found[name] is not None:
                found[name] = storable_text(found[name], allows_nul=True)
        if outcome.messages is not None:
            found["messages"] = as_json(outcome.messages)
            size = len(found["messages"]) + len(outcome.answer or "")
            if size > _LARGEST:
                problem = (
                    f"the conversation has {size:,} characters; Temporal keeps at most {_LARGEST:,} in one value. It stays as it "
                    "was before this turn: use a context that compacts it, or an engine on a database"
                )
                found |= {
                    "state": "failed",
                    "answer": None,
                    "messages": None,
                    "error_type": "TooLarge",
                    "error": problem,
                }
        self.outcome = found

    # ── the workflow ──

    async def _update(self, update: Any, *args: Any) -> Any:
        async with self._updates:
            try:
                return await self._server.update(self._workflow, update, *args)
            except WorkflowGone:
                raise TurnLost from None
            except Refused as refused:
                if refused.kind == LOST:
                    raise TurnLost from None
                if refused.kind == STOPPED:
                    raise
                raise DurableError(f"{self._workflow} refused an update: {refused}") from refused

    async def _signal(self, signal: Any, *args: Any) -> None:
        try:
            await self._server.signal(self._workflow, signal, *args)
        except WorkflowGone:
            raise TurnLost from None
