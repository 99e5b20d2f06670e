"""Runs a child session: creates, opens and closes it inside the call that delegates the task.

The call runs inside the parent's turn, so whatever ends that turn (its deadline, its token, a cancelled scope around it)
ends the child first, and the child has closed before the call returns.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier._json import redact_text
from amplifier.contracts import Coordinator
from amplifier.errors import BudgetError, ExecutionCancelled, ExecutionTimeout
from amplifier.events import EXECUTION_END, LLM_RESPONSE, PROMPT_COMPLETE, PROVIDER_RESPONSE

from .._tool_base import ToolFailure, shown
from ._agents import Agent
from ._token_usage import Budget, TokenUsage, UsageCounter

DEPTH = "self_delegation_depth"
"""The capability with the number of sessions above this one; published modules use this name."""
BUDGET = "task.budget"
"""The capability through which a child shares the budget of its parent."""
SPAWNED, COMPLETED = "task:agent_spawned", "task:agent_completed"

_FIRST = -1_000_000
_FAREWELL = 5.0
"""Seconds for telling that a child has ended, while the call is already being cancelled."""
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:-]")


@attrs.define(kw_only=True)
class Outcome:
    """How a child ended.

    Attributes:
        response: Its answer; its text so far if it failed.
        failure: Why it is not the whole answer; None if it is.
        has_completed: The child's loop reported that it is finished, even if it was asked to stop by then.
    """

    session_id: str
    response: str = ""
    failure: ToolFailure | None = None
    has_completed: bool = False
    consumed: TokenUsage = attrs.Factory(TokenUsage)


def child_id(parent: str, agent: str) -> str:
    """An id that names the parent session and the agent."""
    return f"{parent[:120]}-{uuid.uuid4().hex[:16]}_{_NOT_IN_AN_ID.sub('-', agent)[:60]}"


def depth_of(coordinator: Coordinator) -> int:
    """How many sessions are above this one."""
    depth = coordinator.get_capability(DEPTH)
    return depth if isinstance(depth, int) else 0


class ChildSessions:
    """Runs the child sessions of one session.

    Args:
        coordinator: The parent's.
        budget: Shared by all of them.
        inherited: Names of capabilities that are handed on to children.
        timeout: Seconds for one child, its opening and closing included; None for no limit.
    """

    def __init__(
        self, coordinator: Coordinator, budget: Budget, *, inherited: Sequence[str], timeout: float | None
    ) -> None:
        self._coordinator = coordinator
        self._budget = budget
        self._inherited = inherited
        self._timeout = timeout

    async def run(self, agent: Agent, instruction: str) -> Outcome:
        """Have an agent work on a task; only cancellation is raised."""
        outcome = Outcome(session_id=child_id(self._coordinator.session_id, agent.name))
        if self._budget.is_used_up:
            outcome.failure = _budget_failure(self._budget)
            return outcome
        counter = UsageCounter(self._budget)
        about = {
            "agent": agent.name,
            "sub_session_id": outcome.session_id,
            "parent_session_id": self._coordinator.session_id,
        }
        await self._coordinator.hooks.emit(SPAWNED, {**about, "depth": depth_of(self._coordinator) + 1})
        status = "cancelled"
        try:
            await self._run_in_time(agent, instruction, outcome, counter)
            status = "completed" if outcome.failure is None else "failed"
        finally:
            outcome.consumed = counter.consumed()
            details = {**about, "success": status == "completed", "status": status, "usage": outcome.consumed.shown()}
            if outcome.failure is not None:
                details["error"] = {"type": outcome.failure.kind, "message": str(outcome.failure)}
            with anyio.move_on_after(_FAREWELL, shield=True):
                await self._coordinator.hooks.emit(COMPLETED, details)
        return outcome

    async def _run_in_time(self, agent: Agent, instruction: str, outcome: Outcome, counter: UsageCounter) -> None:
        with anyio.move_on_after(self._timeout) as scope:
            try:
                await self._run_child(agent, instruction, outcome, counter)
            # Foreign code: everything that the child's modules, its plan or the application's own spawner may raise.
            except Exception as error:  # noqa: BLE001
                outcome.failure = _failure_from(error)
        if scope.cancelled_caught:
            outcome.failure = ToolFailure("Timeout", f"the agent was not finished after {self._timeout:g} s, and ended")
        if isinstance(outcome.failure, ToolFailure) and outcome.failure.kind == "Cancelled":
            # The child is cancelled with the parent on its own; if that is why, this raises the cancellation of this call.
            await anyio.lowlevel.checkpoint()

    async def _run_child(self, agent: Agent, instruction: str, outcome: Outcome, counter: UsageCounter) -> None:
        child: Any = self._coordinator.session.fork(dict(agent.overlay), session_id=outcome.session_id)
        host: Coordinator = child.coordinator
        self._prepare(host, outcome, counter)
        async with child:
            forget = self._budget.watch(
                lambda: host.cancellation.request_graceful(reason="the token budget of delegated tasks is used up")
            )
            try:
                context = host.get("context")
                if agent.instruction is not None and context is not None:
                    await context.add_message({"role": "system", "content": agent.instruction})
                outcome.response = await child.execute(instruction)
            finally:
                forget()
            if host.cancellation.is_cancelled and not outcome.has_completed:
                outcome.failure = (
                    _budget_failure(self._budget)
                    if self._budget.is_used_up
                    else ToolFailure("Stopped", "the agent was asked to stop before it was finished")
                )

    def _prepare(self, host: Coordinator, outcome: Outcome, counter: UsageCounter) -> None:
        """Register the capabilities of the child, and the handlers that observe it."""
        for name in self._inherited:
            if (value := self._coordinator.get_capability(name)) is not None:
                host.register_capability(name, value)
        host.register_capability(DEPTH, depth_of(self._coordinator) + 1)
        host.register_capability(BUDGET, self._budget)

        def note_words(_: str, data: Mapping[str, Any]) -> None:
            words = data.get("response")
            outcome.response = words if isinstance(words, str) and words else outcome.response

        def note_end(_: str, data: Mapping[str, Any]) -> None:
            outcome.has_completed = True

        # First of all handlers, for a gate that denies keeps an event from those after it.
        for event in (LLM_RESPONSE, PROVIDER_RESPONSE):
            host.hooks.register(event, counter.take, _FIRST, "tool-task", fields=("provider", "usage"))
        host.hooks.register(COMPLETED, lambda _, data: counter.take_child(data), _FIRST, "tool-task", fields=("usage",))
        host.hooks.register(PROMPT_COMPLETE, note_end, _FIRST, "tool-task", fields=())
        host.hooks.register(EXECUTION_END, note_words, _FIRST, "tool-task", fields=("response",))


def _budget_failure(budget: Budget) -> ToolFailure:
    return ToolFailure("BudgetExceeded", f"the {budget.limit} tokens for delegated tasks of this session are used up")


def _failure_from(error: Exception) -> ToolFailure:
    if isinstance(error, ToolFailure):
        return error
    if isinstance(error, ExecutionCancelled):
        return ToolFailure("Cancelled", "the agent was stopped")
    if isinstance(error, BudgetError):
        return ToolFailure(type(error).__name__, shown(str(error), 1000))
    if isinstance(error, ExecutionTimeout):
        return ToolFailure("Timeout", shown(str(error)))
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    words = shown(redact_text(str(error)), 1000)
    return ToolFailure("AgentFailed", f"the agent failed: {type(error).__name__}: {words}")
