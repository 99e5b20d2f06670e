"""The step wrapper of a durable turn: results are recorded before the loop gets them, and come back when the turn is run again.

A turn that was cut off is run again from its beginning. Every model call and tool call that has a recorded result gets that result
and is not made; the first one without is where the turn really goes on. Results have keys (turn, iteration, call), not positions, so
calls that run at the same time may finish in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import orjson
from anyio.lowlevel import checkpoint_if_cancelled

from amplifier.contracts import Step
from amplifier.errors import ModelError
from amplifier.models import ChatResponse, ToolResult, from_dict, to_dict

from ._errors import DurableError
from ._storable import as_json, storable_key
from ._stores import AttemptStore
from ._turn_rows import ClaimedTurn, StopRequest


class RecordedSteps:
    """Records the steps of one attempt of a turn.

    Args:
        store: Where.
        turn: The attempt.
        on_new_step: Awaited before every step that has no recorded result.
        on_stop: Called with a stop that is found while a step is recorded, before the worker may have heard of it.
    """

    def __init__(
        self,
        store: AttemptStore,
        turn: ClaimedTurn,
        on_new_step: Callable[[Step], Awaitable[None]],
        on_stop: Callable[[StopRequest], None] = lambda stop: None,
    ) -> None:
        self._store = store
        self._turn = turn
        self._on_new_step = on_new_step
        self._on_stop = on_stop

    async def __call__(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded result of a step, or run it and record its result."""
        kind = ChatResponse if step.kind == "model" else ToolResult
        key = storable_key(step.key)
        if key in self._turn.results:
            return from_dict(kind, self._turn.results[key])
        await self._on_new_step(step)
        if step.kind == "tool" and key in self._turn.started:
            step.is_resumed = step.was_started = True
        step.before_start(lambda: self._begin(step))
        result = await run()
        if isinstance(result, kind):
            stop = await self._store.finish_step(self._turn, step, _as_json(step, result))
            if stop is not None:
                self._on_stop(stop)
        return result

    async def _begin(self, step: Step) -> None:
        stop = await self._store.begin_step(self._turn, step)
        if stop is not None:
            self._on_stop(stop)
            if not stop.graceful:
                await anyio.sleep_forever()  # until the cancellation arrives
        await checkpoint_if_cancelled()  # a stop may have come while the store, which cannot be cancelled, was slow


def _as_json(step: Step, result: Any) -> str:
    """A result as JSON; a tool's result without JSON form as the text that the model gets.

    Raises:
        DurableError: The answer of a model has no JSON form; it would not be the same when the turn is run again.
    """
    try:
        return orjson.dumps(to_dict(result)).decode()
    except (ModelError, TypeError, ValueError) as error:
        if isinstance(result, ToolResult):
            return as_json({"success": result.success, "output": result.get_serialized_output()})
        raise DurableError(
            f"the answer of model call {step.call.iteration} (step {step.key!r}) cannot be stored: {error}; expected text that can be "
            "encoded as UTF-8 and integers of at most 64 bits"
        ) from error
