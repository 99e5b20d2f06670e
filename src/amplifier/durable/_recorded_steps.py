"""Recorded steps: the results of model and tool calls, and their replay in later attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import orjson
from anyio.lowlevel import checkpoint_if_cancelled

from amplifier.contracts import Step, current_call
from amplifier.errors import ModelError
from amplifier.models import ChatResponse, ToolResult, from_dict, to_dict

from ._errors import DurableError
from ._suspects import CallLimits
from ._values import ClaimedTurn, Plan, StepName, StopRequest

if TYPE_CHECKING:
    from dbos import StepReservation

    from ._turn_record import TurnRecord


class RunningCalls:
    """The running calls of a turn and of its children.

    A worker waits for these calls before it exits, so that none is interrupted.

    Attributes:
        keys: The record names of the calls, by session and step.
        plan: The plan of a turn that has no records yet. It is stored with the first record.
    """

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], str] = {}
        self.plan: Plan | None = None
        self._running: set[str] = set()
        self._on_idle: Callable[[], None] | None = None

    async def begin(self, key: str) -> None:
        """Record that a call starts.

        If the worker is shutting down, wait until the attempt ends.
        """
        if self._on_idle is not None:
            await anyio.sleep_forever()
        self._running.add(key)

    def end(self, key: str) -> None:
        """Record that a call may be interrupted, usually because its result is recorded."""
        self._running.discard(key)
        if self._on_idle is not None and not self._running:
            self._on_idle()

    def leave(self, on_idle: Callable[[], None]) -> None:
        """Prevent further calls from starting, and call ``on_idle()`` once none is running."""
        self._on_idle = on_idle
        if not self._running:
            on_idle()


# A turn that was interrupted runs again from its beginning. A model call or tool call with a
# recorded result isn't made and returns that result. The turn really continues at the first call
# without a result. Results have keys (turn, iteration, call), not positions, so calls that run at
# the same time may finish in any order.


@attrs.define(eq=False)
class RecordedSteps:
    """Records the steps of one attempt of a turn.

    Attributes:
        store: Stores the records.
        turn: The attempt.
        on_new_step: Awaited before every step without a recorded result.
        on_stop: Called with a stop request found while a step was recorded, since the worker may
            not have noticed it yet.
        limits: The call limits of the worker.
        may_repeat: Returns whether a tool may be called again after a failure.
        prefix: The beginning of every key, empty except in a child session.
        calls: The running calls of the turn and its children.
    """

    store: TurnRecord
    turn: ClaimedTurn
    on_new_step: Callable[[Step], Awaitable[None]]
    on_stop: Callable[[StopRequest], object]
    limits: CallLimits
    may_repeat: Callable[[str], bool]
    prefix: str = ""
    calls: RunningCalls = attrs.field(factory=RunningCalls)
    _leave: dict[str, Callable[[], object]] = attrs.field(init=False, factory=dict)
    _known_answers: set[int] = attrs.field(init=False, factory=set)
    _children: Counter[str] = attrs.field(init=False, factory=Counter)

    async def __call__(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded result of a step, or run it and record its result."""
        kind = ChatResponse if step.kind == "model" else ToolResult
        name = StepName(key=self.prefix + step.key, kind=step.kind, name=step.call.tool_name or "")
        if name.record in self.turn.results:
            if step.kind == "model":
                self._known_answers.add(step.call.iteration)
            return from_dict(kind, self.turn.results[name.record])
        # Reserve the place before the first await, so that places are in the order of the calls. An
        # unused place stays empty.
        begins = self.store.reserve() if step.kind == "tool" else None
        ends = self.store.reserve()
        await self.on_new_step(step)
        if step.kind == "tool":
            self._note_earlier_attempt(step, name)
        step.before_start(lambda: self._begin(name, begins))
        self.calls.keys[step.call.session_id, step.key] = name.record
        try:
            result = await self._tried(name, run)
            if isinstance(result, kind):
                plan, self.calls.plan = self.calls.plan, None
                await self.store.finish_step(name, ends, _plain(step, result), plan)
        finally:
            self._end(name)
        return result

    def _note_earlier_attempt(self, step: Step, name: StepName) -> None:
        """Mark a call without a result that an earlier attempt has started or may have started."""
        if name.record in self.turn.started:
            step.is_resumed = step.was_started = True
        elif step.call.iteration in self._known_answers and (
            self.turn.has_new_plan or self.may_repeat(name.name)
        ):
            # The start of the call wasn't recorded, perhaps because the former plan didn't require
            # it.
            step.is_resumed, step.was_started = True, None

    async def _tried(self, step: StepName, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step. Retry a failed repeatable tool within its limit.

        Every try passes the gates.
        """
        pauses = self.limits.pauses(step.name) if step.kind == "tool" else []
        for pause in pauses if pauses and self.may_repeat(step.name) else ():
            result = await run()
            if not isinstance(result, ToolResult) or result.success or step.key not in self._leave:
                return result
            # The worker may exit between two tries.
            self._end(step)
            await anyio.sleep(pause)
        return await run()

    def _end(self, step: StepName) -> None:
        self._leave.pop(step.key, lambda: None)()
        self.calls.end(step.key)

    def of_child(self, name: str) -> RecordedSteps:
        """Return the step wrapper of a child session, which records under the current call.

        Args:
            name: A name that is the same in every attempt, such as the agent's name with its task.
        """
        call = current_call()
        key = self.prefix + (
            "" if call is None else f"{call.turn_number}/{call.iteration}/{call.call_id}"
        )
        # The child's own steps are recorded, so this call may be interrupted.
        self.calls.end(key)
        prefix = f"{key}>{name}"
        self._children[prefix] += 1
        return attrs.evolve(self, prefix=f"{prefix}.{self._children[prefix]}>")

    async def _begin(self, step: StepName, slot: StepReservation | None) -> None:
        self._leave[step.key] = await self.limits.enter(step.name or "model")
        await self.calls.begin(step.key)
        if slot is None or self.may_repeat(step.name):
            # The call is repeatable, so its start needn't be recorded.
            return
        plan, self.calls.plan = self.calls.plan, None
        stop = await self.store.begin_step(step, slot, plan)
        if stop is not None:
            self.on_stop(stop)
            if not stop.graceful:
                # Wait for the cancellation to arrive.
                await anyio.sleep_forever()
        # A stop may have been requested while the store, which can't be cancelled, was busy.
        await checkpoint_if_cancelled()


def _plain(step: Step, result: object) -> Any:
    """Return a result as plain data.

    A tool's result without a JSON form becomes the text that the model gets.

    Raises:
        DurableError: The answer of a model has no JSON form, so a replay would change it.
    """
    try:
        plain = to_dict(result)
        orjson.dumps(plain)
    except (ModelError, TypeError, ValueError) as error:
        if isinstance(result, ToolResult):
            return {"success": result.success, "output": result.get_serialized_output()}
        raise DurableError(
            f"the answer of model call {step.call.iteration} (step {step.key!r}) cannot be stored: "
            f"{error}; expected text that can be encoded as UTF-8 and integers of at most 64 bits"
        ) from error
    return plain
