"""The step wrapper of a durable turn: results are recorded before the loop gets them, and come back when the turn is run again.

A turn that was cut off is run again from its beginning. Every model call and tool call that has a recorded result gets that result
and is not made; the first one without is where the turn really goes on. Results have keys (turn, iteration, call), not positions, so
calls that run at the same time may finish in any order.
"""

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
    """The calls of a turn and of its children that run now, so that a worker that leaves need not cut one off.

    Attributes:
        keys: Of the calls' records, by session and step.
        plan: Of a turn of which nothing is recorded; goes with the first record.
    """

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], str] = {}
        self.plan: Plan | None = None
        self._running: set[str] = set()
        self._on_idle: Callable[[], None] | None = None

    async def begin(self, key: str) -> None:
        """Note that a call begins; when the worker is leaving, it waits instead for the end of this attempt."""
        if self._on_idle is not None:
            await anyio.sleep_forever()
        self._running.add(key)

    def end(self, key: str) -> None:
        """Note that a call has ended, and its result is recorded, or that it may be cut off."""
        self._running.discard(key)
        if self._on_idle is not None and not self._running:
            self._on_idle()

    def leave(self, on_idle: Callable[[], None]) -> None:
        """Let no more calls begin, and have ``on_idle()`` called when none runs."""
        self._on_idle = on_idle
        if not self._running:
            on_idle()


@attrs.define(eq=False)
class RecordedSteps:
    """Records the steps of one attempt of a turn.

    Attributes:
        store: Where.
        turn: The attempt.
        on_new_step: Awaited before every step that has no recorded result.
        on_stop: Called with a stop that is found while a step is recorded, before the worker may have heard of it.
        limits: Of the worker.
        may_repeat: Whether a tool may be called again after a failure.
        prefix: Of the keys, in a child session.
        calls: Those that run, of the turn and its children.
    """

    store: TurnRecord
    turn: ClaimedTurn
    on_new_step: Callable[[Step], Awaitable[None]]
    on_stop: Callable[[StopRequest], None]
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
        # Before anything is awaited, so in the order of the calls. A place that is not used stays empty.
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
        """Note on a call without a result whether an earlier attempt has begun it."""
        if name.record in self.turn.started:
            step.is_resumed = step.was_started = True
        elif step.call.iteration in self._known_answers and (
            self.turn.has_new_plan or self.may_repeat(name.name)
        ):
            # Its beginning was not recorded, or need not have been with the former plan.
            step.is_resumed, step.was_started = True, None

    async def _tried(self, step: StepName, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step; a repeatable tool that has begun and failed runs again, as often as its limit says. Every try passes the gates."""
        pauses = self.limits.pauses(step.name) if step.kind == "tool" else []
        for pause in pauses if pauses and self.may_repeat(step.name) else ():
            result = await run()
            if not isinstance(result, ToolResult) or result.success or step.key not in self._leave:
                return result
            self._end(step)  # a worker that leaves need not wait for the next try
            await anyio.sleep(pause)
        return await run()

    def _end(self, step: StepName) -> None:
        self._leave.pop(step.key, lambda: None)()
        self.calls.end(step.key)

    def of_child(self, name: str) -> RecordedSteps:
        """The step wrapper of a child session that the current call runs: its calls are recorded as part of that call.

        Args:
            name: The same in every attempt, for example made of the agent and its task.
        """
        call = current_call()
        key = self.prefix + (
            "" if call is None else f"{call.turn_number}/{call.iteration}/{call.call_id}"
        )
        self.calls.end(key)  # what the child does is recorded, so this call may be cut off
        prefix = f"{key}>{name}"
        self._children[prefix] += 1
        return attrs.evolve(self, prefix=f"{prefix}.{self._children[prefix]}>")

    async def _begin(self, step: StepName, slot: StepReservation | None) -> None:
        self._leave[step.key] = await self.limits.enter(step.name or "model")
        await self.calls.begin(step.key)
        if slot is None or self.may_repeat(step.name):
            # It can be made again, so its beginning need not be known.
            return
        plan, self.calls.plan = self.calls.plan, None
        stop = await self.store.begin_step(step, slot, plan)
        if stop is not None:
            self.on_stop(stop)
            if not stop.graceful:
                await anyio.sleep_forever()  # until the cancellation arrives
        await (
            checkpoint_if_cancelled()
        )  # a stop may have come while the store, which cannot be cancelled, was slow


def _plain(step: Step, result: Any) -> Any:
    """Return a result as plain data; a tool's result without JSON form as the text that the model gets.

    Raises:
        DurableError: The answer of a model has no JSON form; it would not be the same when the turn is run again.
    """
    try:
        plain = to_dict(result)
        orjson.dumps(plain)
    except (ModelError, TypeError, ValueError) as error:
        if isinstance(result, ToolResult):
            return {"success": result.success, "output": result.get_serialized_output()}
        raise DurableError(
            f"the answer of model call {step.call.iteration} (step {step.key!r}) cannot be stored: {error}; expected text that can be "
            "encoded as UTF-8 and integers of at most 64 bits"
        ) from error
    return plain
