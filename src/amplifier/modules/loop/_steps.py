"""The model calls and tool calls of a turn as steps, which modules can wrap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from amplifier.contracts import Coordinator, CurrentCall, Step, call_scope
from amplifier.models import ChatRequest, ToolCall

Call = Callable[[], Awaitable[Any]]


class TurnSteps:
    """Makes and runs the steps of one turn.

    Args:
        coordinator: Has the wrappers; without one (a loop under test) there are none.

    Attributes:
        iteration: The latest model call, counted from 1.
    """

    def __init__(self, coordinator: Coordinator | None) -> None:
        self._coordinator = coordinator
        self._session_id = "" if coordinator is None else coordinator.session_id
        self._turn_number = 0 if coordinator is None else coordinator.turn_number
        self.iteration = 0

    def of_model(self, request: ChatRequest) -> Step:
        """The step of the latest model call."""
        call_id = f"model-{self._turn_number}-{self.iteration}"
        return Step(
            call=CurrentCall(
                kind="model",
                session_id=self._session_id,
                turn_number=self._turn_number,
                iteration=self.iteration,
                call_id=call_id,
            ),
            arguments=request,
        )

    def of_tool(self, call: ToolCall, *, is_resumed: bool) -> Step:
        """The step of a tool call that the latest answer asks for."""
        return Step(
            call=CurrentCall(
                kind="tool",
                session_id=self._session_id,
                turn_number=self._turn_number,
                iteration=self.iteration,
                call_id=call.id,
                tool_name=call.name,
            ),
            arguments=call.arguments,
            is_resumed=is_resumed,
        )

    async def run(
        self,
        step: Step,
        run: Call,
        admit: Call | None = None,
        limiter: AbstractAsyncContextManager[None] | None = None,
    ) -> Any:
        """Run a step inside its wrappers; see `Coordinator.run_step`."""
        if self._coordinator is not None:
            return await self._coordinator.run_step(step, run, admit=admit, limiter=limiter)
        with call_scope(step.call):
            async with limiter or nullcontext():
                refused = None if admit is None else await admit()
                return await run() if refused is None else refused
