"""The record of one attempt of a turn: updates and signals of its workflow."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

import anyio
import attrs
import orjson

from amplifier.live import Question

from .._errors import DurableError, TurnLost
from .._storable import as_json, storable_key, storable_text
from .._turn_rows import ClaimedTurn, Outcome, Plan, StepName, StopRequest
from ._server import Refused, Server, WorkflowGone
from ._workflows import LOST, STOPPED, TurnWorkflow, turn_workflow_id

logger = logging.getLogger("amplifier.durable")

_LARGEST: Final = 1_500_000
"""Characters of JSON in one value; the server takes two megabytes, in which quotes are escaped."""
_LARGEST_BATCH: Final = 250_000
_BATCHES_BETWEEN_CHECKS: Final = 50
_LONGEST_NAME: Final = 100


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
