"""The two workflows: a session, which keeps the conversation, and a turn, which is a child of its session's.

Neither runs any code of the application. The turn's workflow is its journal: an activity runs the session, on any worker and any
backend, and that worker sends the result of every model call and tool call as a signal that has the call's name. So the history has every
result, and the workflow can give all of them to the next worker.

What is here is replayed from recorded histories: tests/durable/test_temporal_replay.py. A change that makes other commands needs
``workflow.patched``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import Priority, RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, WorkflowAlreadyStartedError

from ._reporting import FIRST_PAUSE, LONGEST_PAUSE, MOST_TRIES

RUN_TURN = "amplifier-run-turn"
HEAR_NEWS = "amplifier-news"
START_TURN = "amplifier-start-turn"
NOTIFY = "amplifier-notify"

LOST = "TurnLost"
BUSY = "SessionBusy"
CONFLICT = "TurnConflict"
CLOSED = "QuestionClosed"
STOPPED = "TurnStopped"
STEPS = ("model", "tool ")
"""How the names of signals begin that have a result."""

_Row = TypeVar("_Row", bound=tuple[Any, ...])

_NO_LIMIT = timedelta(days=3650)
"""Of the time that a turn may take: heartbeats show whether it goes on."""
_MOST_BATCHES = 5_000
"""Of events for watchers; the server takes 10,000 signals, and results are some of them."""
_MOST_EVENTS = 20_000
_MOST_BYTES = 20_000_000
"""Of a turn's history, before events for watchers are no longer taken: the server ends a workflow at two and a half times that."""
_PAGE = 500_000
_LONGEST_ERROR = 500


MEMO = "turn"


def memo_of(status: dict[str, Any], deaths: int) -> dict[str, Any]:
    """What lists of workflows show of a turn."""
    shown = {name: status.get(name) for name in ("session_id", "state", "attempt", "worker", "error_type", "error")}
    return {**shown, "error": (shown["error"] or "")[:_LONGEST_ERROR] or None, "takeovers": deaths}


def turn_workflow_id(queue: str, turn_id: str) -> str:
    """The workflow of a turn on a task queue."""
    return f"{queue}-turn-{turn_id}"


def session_workflow_id(queue: str, session_id: str) -> str:
    """The workflow of a session on a task queue."""
    return f"{queue}-session-{session_id}"


def _page(rows: Iterable[_Row]) -> list[_Row]:
    """As many rows as fit into the answer to a query; each ends with its text."""
    page: list[_Row] = []
    size = 0
    for row in rows:
        size += len(row[-1])
        if page and size > _PAGE:
            break
        page.append(row)
    return page


@workflow.defn(name="amplifier-turn")
class TurnWorkflow:
    """One turn.

    Args:
        spec: ``turn_id``, ``session_id``, ``prompt``, ``lease`` and ``poll`` in seconds, ``since`` when, a `TurnPolicy`, and, unless it
            waits behind another turn, ``number`` and ``messages`` before the turn as JSON.
    """

    @workflow.init
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._lease = timedelta(seconds=spec["lease"])
        self._status: dict[str, Any] = {
            "turn_id": spec["turn_id"],
            "session_id": spec["session_id"],
            "state": "queued",
            "attempt": 0,
            "worker": None,
            "started": spec["since"],
        }
        self._queue = ""
        self._run_number = 0
        self._claimed = (0, 0)
        self._deaths = 0
        # The latest worker ended in good order; else it counts as dead when the next one claims the turn.
        self._has_left = True
        self._is_released = False
        self._plan: dict[str, str] | None = None
        self._stop: dict[str, Any] | None = None
        self._is_resumed = False
        self._started: list[str] = []
        self._results: dict[str, str] = {}
        self._questions: dict[str, dict[str, Any]] = {}
        self._withdrawn: set[str] = set()
        self._answers: dict[str, str] = {}
        self._events: list[tuple[int, int, str]] = []

    @workflow.run
    async def run(self, spec: dict[str, Any]) -> str | None:
        """Run it; returns the conversation as JSON, None if the turn did not change it."""
        await workflow.wait_condition(lambda: "messages" in self._spec or self._stop is not None)
        pause = (spec["due_at"] or 0.0) - workflow.time()
        if pause > 0:
            with suppress(TimeoutError):
                await workflow.wait_condition(lambda: self._stop is not None, timeout=timedelta(seconds=pause))
        while True:
            if self._is_stopped_before_it_began():
                outcome: dict[str, Any] = {"state": "stopped"}
            else:
                outcome = await self._run_on_a_worker()
            self._has_left = True
            self._is_released = False
            if outcome["state"] == "queued":
                continue
            if "events" in outcome:
                self._events.append(outcome["events"])
            if outcome["state"] == "completed" and self._is_stopped_at_once():
                outcome["state"] = "stopped"
            self._show(**{name: outcome.get(name) for name in ("state", "answer", "error_type", "error")})
            if self._status["state"] != "held":
                break
            self._is_resumed = False
            await workflow.wait_condition(lambda: self._is_resumed or self._stop is not None)
            self._show(state="queued", error_type=None, error=None)
        self._questions.clear()
        if spec.get("notify") is not None:
            _ = await workflow.start_child_workflow(
                NoticeWorkflow.run,
                args=[spec["notify"], self.status()],
                id=f"{workflow.info().workflow_id}-notice",
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
        await workflow.wait_condition(workflow.all_handlers_finished)
        messages: str | None = outcome.get("messages")
        return messages

    async def _run_on_a_worker(self) -> dict[str, Any]:
        """How the turn ends on the worker that has it at last; the server gives it to another one when heartbeats fail."""
        self._run_number += 1
        running: workflow.ActivityHandle[dict[str, Any]] = workflow.start_activity(
            RUN_TURN,
            args=[self._spec["turn_id"], self._run_number],
            result_type=dict[str, Any],
            heartbeat_timeout=self._lease,
            start_to_close_timeout=_NO_LIMIT,
            # The number of workers that may die with the turn is limited by those who claim it.
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=self._spec["poll"]),
                backoff_coefficient=1.1,
                maximum_interval=timedelta(seconds=max(5.0, self._spec["poll"])),
            ),
            summary=f"turn {self._spec['turn_id']}",
            priority=Priority(priority_key=self._spec["priority"]),
        )
        await workflow.wait_condition(lambda: running.done() or self._is_stopped_before_it_began() or self._is_released)
        if not running.done():
            running.cancel()
            return {"state": "queued" if self._is_released else "stopped"}
        try:
            return await running
        except ActivityError as error:
            cause: BaseException = error.cause or error
            return {"state": "failed", "error_type": type(cause).__name__, "error": str(cause)}

    def _show(self, **changes: Any) -> None:
        """Change the status, and the memo that lists of workflows have."""
        self._status |= changes
        if self._is_final():
            self._status["ended"] = workflow.time()
        workflow.upsert_memo({MEMO: memo_of(self._status, self._takeovers())})

    @workflow.signal
    def begin(self, number: int, messages: str) -> None:
        """Let a turn begin that waited behind another one, with the number and the conversation that it has now."""
        self._spec |= {"number": number, "messages": messages}

    def _is_stopped_before_it_began(self) -> bool:
        return self._stop is not None and self._status["attempt"] == 0

    def _is_stopped_at_once(self) -> bool:
        return self._stop is not None and not self._stop["graceful"]

    def _is_final(self) -> bool:
        return self._status["state"] in ("completed", "failed", "stopped")

    # ── for workers; an attempt that is not the latest is refused ──

    def _is_current(self, attempt: int) -> bool:
        return (attempt, "running") == (self._status["attempt"], self._status["state"])

    def _demand(self, attempt: int) -> None:
        if not self._is_current(attempt):
            raise ApplicationError("another worker has the turn", type=LOST, non_retryable=True)

    @workflow.update
    def claim(self, run_number: int, attempt: int, worker: str, queue: str) -> dict[str, Any]:
        """Take the turn for a worker, whose task queue has its news from now on."""
        self._claimed = (run_number, attempt)
        self._deaths = self._takeovers()
        self._has_left = False
        self._queue = queue
        self._show(state="running", worker=worker, attempt=self._status["attempt"] + 1, error_type=None, error=None)
        given = ("turn_id", "session_id", "number", "prompt", "messages", "since", "deadline_at")
        return {
            **{name: self._spec[name] for name in given},
            "attempt": self._status["attempt"],
            "plan": self._plan,
            "stop": self._stop,
            "started": self._started,
            "last_position": self._events[-1][0] if self._events else 0,
            "deaths": self._deaths,
        }

    @claim.validator
    def _check_claim(self, run_number: int, attempt: int, worker: str, queue: str) -> None:
        if (run_number, attempt) <= self._claimed or self._is_final() or self._is_stopped_before_it_began():
            raise ApplicationError("another worker has the turn, or it has ended", type=LOST, non_retryable=True)

    @workflow.update
    def begin_step(self, attempt: int, key: str, plan: dict[str, str] | None = None) -> None:
        """Note that a tool call begins now."""
        self._plan = plan or self._plan
        self._started.append(key)

    @begin_step.validator
    def _check_begin_step(self, attempt: int, key: str, plan: dict[str, str] | None = None) -> None:
        self._demand(attempt)
        if self._is_stopped_at_once():
            raise ApplicationError(json.dumps(self._stop), type=STOPPED, non_retryable=True)

    @workflow.signal(dynamic=True)
    def finish_step(self, name: str, args: Sequence[RawValue]) -> None:
        """Keep the result of a call; the signal has the name of the call, for Temporal's pages."""
        if name.startswith(STEPS):
            given = (workflow.payload_converter().from_payload(each.payload) for each in args)
            attempt, key, result, plan = (*given, None)[:4]
            if self._is_current(attempt):
                self._plan = plan or self._plan
                self._results.setdefault(key, result)

    @workflow.update
    def ask(self, attempt: int, question: dict[str, Any]) -> str | None:
        """Store a question; returns the answer, if there is one."""
        self._questions.setdefault(question["question_id"], question)
        self._withdrawn.discard(question["question_id"])
        return self._answers.get(question["question_id"])

    @ask.validator
    def _check_ask(self, attempt: int, question: dict[str, Any]) -> None:
        self._demand(attempt)

    @workflow.signal
    def withdraw(self, attempt: int, question_id: str) -> None:
        """Show a question no more that no one waits for; an answer that is on its way counts if it is asked again."""
        if attempt == self._status["attempt"]:
            self._withdrawn.add(question_id)

    @workflow.signal
    def add_events(self, attempt: int, last_position: int, events: str) -> None:
        """Keep events for watchers, as JSON."""
        if attempt == self._status["attempt"]:
            self._events.append((last_position, attempt, events))

    @workflow.signal
    def leave(self, attempt: int) -> None:
        """Note that a worker hands the turn over in good order."""
        if attempt == self._status["attempt"]:
            self._has_left = True

    def _takeovers(self) -> int:
        """Workers that have died while they ran the turn."""
        return self._deaths + (not self._has_left)

    @workflow.query
    def begun(self) -> dict[str, Any]:
        """What a worker has to know before it claims the turn."""
        about = {"session_id": self._spec["session_id"], "attempt": self._status["attempt"], "plan": self._plan}
        return {**about, "is_stopped": self._stop is not None, "deaths": self._takeovers()}

    @workflow.signal
    def hold(self, attempt: int, problem: str) -> None:
        """Show that a worker came for the turn and has another plan; the server gives it to others until one has the right one."""
        if attempt == self._status["attempt"] and not self._is_final():
            self._show(state="held", error_type="PlanChanged", error=problem)

    @workflow.query
    def takes_events(self) -> bool:
        """Whether there is room for events in the history."""
        info = workflow.info()
        length, size = info.get_current_history_length(), info.get_current_history_size()
        return len(self._events) < _MOST_BATCHES and length < _MOST_EVENTS and size < _MOST_BYTES

    @workflow.query
    def results(self, after: int) -> list[tuple[str, str]]:
        """Results of steps behind a place, by key; none if there are no more."""
        return _page(islice(self._results.items(), after, None))

    # ── for clients ──

    @workflow.query
    def request(self) -> list[str]:
        """Its session and its prompt."""
        return [self._spec["session_id"], self._spec["prompt"]]

    @workflow.query
    def status(self) -> dict[str, Any]:
        """What the turn does."""
        closed = self._withdrawn | self._answers.keys()
        waiting = [self._questions[name] for name in sorted(self._questions.keys() - closed)]
        return {**self._status, "takeovers": self._takeovers(), "questions": waiting}

    @workflow.query
    def events_after(self, position: int) -> list[tuple[int, int, str]]:
        """Batches of events behind a position, each with the position of its last one and its attempt."""
        return _page(batch for batch in self._events if batch[0] > position)

    @workflow.signal
    def stop(self, wanted: dict[str, Any]) -> None:
        """End the turn; a graceful stop does not weaken an immediate one."""
        if not self._is_final():
            if not self._is_stopped_at_once():
                self._stop = wanted
            self._tell_worker({"stop": self._stop})

    @workflow.update
    def approve(self, question_id: str, option: str) -> None:
        """Answer a question that waits; the same answer again changes nothing."""
        if question_id not in self._answers:
            self._answers[question_id] = option
            self._tell_worker({"answers": {question_id: option}})

    @approve.validator
    def _check_approve(self, question_id: str, option: str) -> None:
        if self._answers.get(question_id) == option:
            return
        offered = self._questions.get(question_id, {"options": ()})["options"]
        if question_id in self._answers or question_id in self._withdrawn or option not in offered:
            raise ApplicationError("the question does not wait for this answer", type=CLOSED, non_retryable=True)

    @workflow.signal
    def resume(self) -> None:
        """Let a held turn go on with any plan."""
        if self._status["state"] == "held":
            self._is_resumed = True
            self._plan = None
            self._show(state="queued", error_type=None, error=None)

    @workflow.signal
    def release(self) -> None:
        """Take the turn away from the worker that runs it."""
        if self._status["state"] == "running":
            self._show(state="queued")
            self._is_released = True

    def _tell_worker(self, news: dict[str, Any]) -> None:
        """Pass news to the worker that runs the turn; the next one hears them when it claims the turn or asks again."""
        if self._status["state"] == "running":
            handle: workflow.ActivityHandle[None] = workflow.start_activity(
                HEAR_NEWS,
                args=[self._spec["turn_id"], self._status["attempt"], news],
                task_queue=self._queue,
                start_to_close_timeout=self._lease,
            )
            handle.add_done_callback(lambda _: handle.cancelled() or handle.exception())


@workflow.defn(name="amplifier-notice")
class NoticeWorkflow:
    """Calls back the one who started a turn; of its own, so that the session does not wait for it."""

    @workflow.run
    async def run(self, url: str, status: dict[str, Any]) -> None:
        """Do it, again if it is not taken; after the last try this fails, to be seen on Temporal's pages."""
        await workflow.execute_local_activity(
            NOTIFY,
            args=[url, status],
            start_to_close_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=FIRST_PAUSE),
                maximum_interval=timedelta(seconds=LONGEST_PAUSE),
                maximum_attempts=MOST_TRIES,
            ),
        )


@workflow.defn(name="amplifier-scheduled")
class ScheduledWorkflow:
    """Starts one turn for a schedule of Temporal, which starts this."""

    @workflow.run
    async def run(self, session_id: str, prompt: str, prefix: str) -> None:
        """Start it; the server has put the date behind this workflow's id, and so it is in the turn's."""
        await workflow.execute_local_activity(
            START_TURN,
            args=[session_id, prompt, workflow.info().workflow_id.removeprefix(prefix)],
            start_to_close_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(non_retryable_error_types=["WorkflowUpdateFailedError"]),
        )


@workflow.defn(name="amplifier-session")
class SessionWorkflow:
    """One session: its conversation between turns, one open turn at a time, and those that wait. It stays until someone terminates it.

    Args:
        state: ``session_id``, the task ``queue``, ``number`` of the latest turn, ``messages`` as JSON.
    """

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._session_id: str = state["session_id"]
        self._queue: str = state["queue"]
        self._number: int = state["number"]
        self._messages: str = state["messages"]
        self._open_turn: str | None = None
        self._waiting: dict[str, workflow.ChildWorkflowHandle[TurnWorkflow, str | None] | None] = {}

    @workflow.run
    async def run(self, state: dict[str, Any]) -> None:
        """Let turns begin that wait, in order, until the history is long; then begin a new one."""
        while True:
            await workflow.wait_condition(lambda: self._next() is not None or self._may_begin_anew())
            if (turn_id := self._next()) is None:
                break
            handle = self._waiting.pop(turn_id)
            assert handle is not None
            self._open_turn = turn_id
            self._number += 1
            with suppress(FailureError):  # it was stopped at this moment, and is heard of
                await handle.signal(TurnWorkflow.begin, args=[self._number, self._messages])
        workflow.continue_as_new(
            {
                "session_id": self._session_id,
                "queue": self._queue,
                "number": self._number,
                "messages": self._messages,
            }
        )

    def _next(self) -> str | None:
        """The turn that may begin now."""
        if self._open_turn is not None or not self._waiting:
            return None
        turn_id, handle = next(iter(self._waiting.items()))
        return turn_id if handle is not None else None

    def _may_begin_anew(self) -> bool:
        is_idle = self._open_turn is None and not self._waiting and workflow.all_handlers_finished()
        return workflow.info().is_continue_as_new_suggested() and is_idle

    @workflow.update
    async def start_turn(self, wanted: dict[str, Any], queue: bool) -> bool:
        """Start a turn's workflow; returns whether another request does it or has done it, perhaps with another prompt."""
        turn_id: str = wanted["turn_id"]
        if turn_id == self._open_turn or turn_id in self._waiting:
            return True
        waits = self._open_turn is not None or bool(self._waiting)
        spec = {**wanted, "session_id": self._session_id, "since": workflow.time()}
        if waits:
            self._waiting[turn_id] = None
        else:
            self._open_turn = turn_id
            spec |= {"number": self._number + 1, "messages": self._messages}
        about = memo_of({"session_id": self._session_id, "state": "queued", "attempt": 0}, 0)
        try:
            handle = await workflow.start_child_workflow(
                TurnWorkflow.run,
                spec,
                id=turn_workflow_id(self._queue, turn_id),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                task_timeout=workflow.info().task_timeout,
                memo={MEMO: about},
            )
        except WorkflowAlreadyStartedError:
            self._forget(turn_id)
            raise ApplicationError("the turn exists", type=CONFLICT, non_retryable=True) from None
        if waits:
            self._waiting[turn_id] = handle
        else:
            self._number += 1
        handle.add_done_callback(lambda _: self._end_turn(turn_id, handle))
        return False

    @start_turn.validator
    def _check_start_turn(self, wanted: dict[str, Any], queue: bool) -> None:
        others = [each for each in (self._open_turn, *self._waiting) if each is not None]
        if others and wanted["turn_id"] not in others and not queue:
            raise ApplicationError(others[0], type=BUSY, non_retryable=True)

    def _forget(self, turn_id: str) -> None:
        self._waiting.pop(turn_id, None)
        if self._open_turn == turn_id:
            self._open_turn = None

    def _end_turn(self, turn_id: str, handle: workflow.ChildWorkflowHandle[TurnWorkflow, str | None]) -> None:
        self._forget(turn_id)
        if not handle.cancelled() and handle.exception() is None:
            self._messages = handle.result() or self._messages

    @workflow.query
    def conversation(self) -> dict[str, Any]:
        """The messages as JSON, and the open turn."""
        return {"messages": self._messages, "open_turn": self._open_turn}
