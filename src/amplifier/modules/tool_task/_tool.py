"""task: one task for one agent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import anyio

from amplifier.contracts import Coordinator
from amplifier.models import ToolResult

from .._tool_base import BuiltinTool, ToolFailure, shown
from ._agents import Agent, describe, find_agent
from ._child_sessions import ChildSessions, Outcome, child_id

_MOST_EXAMPLES = 50
SPAWN = "session.spawn"
"""The capability through which an application opens child sessions its own way."""


class TaskTool(BuiltinTool):
    """Hands tasks to agents.

    Args:
        coordinator: The session's.
        agents: Who there is.
        children: Runs them.
        max_parallel: Agents at work at the same time.
        max_response_chars: Of one answer.
    """

    _name = "task"
    _description = (
        "Hand a task to an agent, which works on it on its own and answers once. It knows nothing of this conversation and "
        "cannot ask back: put everything it needs into the instruction, and state what to return. Several calls at once run "
        "side by side. Agents:\n"
    )
    _schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "description": "The agent's name.", "minLength": 1, "maxLength": 200},
            "instruction": {
                "type": "string",
                "description": "The whole task.",
                "minLength": 1,
                "maxLength": 200_000,
            },
        },
        "required": ["agent", "instruction"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        coordinator: Coordinator,
        agents: Mapping[str, Agent],
        children: ChildSessions,
        *,
        max_parallel: int = 4,
        max_response_chars: int = 100_000,
    ) -> None:
        self._coordinator = coordinator
        self._agents = agents
        self._children = children
        self._slots = anyio.Semaphore(max_parallel)
        self._max_response_chars = max_response_chars
        self._words = self._description + describe(agents)
        # As in the description: names that cannot be shown as they are could not be sent to a model either.
        self._agent_names = [name for name in agents if shown(name, 200) == name][:_MOST_EXAMPLES]

    @property
    def description(self) -> str:
        """What it does, and who there is."""
        return self._words

    def get_schema(self) -> dict[str, Any]:
        """The input, with the names of agents as examples."""
        schema = super().get_schema()
        schema["properties"]["agent"]["examples"] = list(self._agent_names)
        return schema

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        agent = find_agent(self._agents, values["agent"])
        outcome = await self.delegate(agent, values["instruction"])
        response = outcome.response.encode("utf-8", "backslashreplace").decode()
        output: dict[str, Any] = {
            "response": response[: self._max_response_chars],
            "agent": shown(agent.name),
            "session_id": outcome.session_id,
            "usage": outcome.consumed.shown(),
        }
        if len(response) > self._max_response_chars:
            output["truncated"] = True
            output["total_chars"] = len(response)
        if outcome.failure is None:
            return ToolResult(output=output)
        result = self._failed(outcome.failure)
        result.output = {
            **output,
            "failure": str(outcome.failure),
        }  # the model is shown the output of a result, if it has one
        return result

    async def delegate(self, agent: Agent, instruction: str) -> Outcome:
        """Have an agent work on a task when there is a place for it; only cancellation is raised."""
        async with self._slots:
            spawn = self._coordinator.get_capability(SPAWN)
            if spawn is None:
                return await self._children.run(agent, instruction)
            return await self._spawned(spawn, agent, instruction)

    async def _spawned(self, spawn: Any, agent: Agent, instruction: str) -> Outcome:
        """Leave it to the application, which then also counts and limits."""
        outcome = Outcome(session_id=child_id(self._coordinator.session_id, agent.name))
        offered = {
            "agent_name": agent.name,
            "instruction": instruction,
            "task": instruction,
            "parent_session": self._coordinator.session,
            "agent_configs": self._coordinator.config.get("agents") or {},
            "sub_session_id": outcome.session_id,
        }
        try:
            answer = spawn(**_accepted(spawn, offered))
            answer = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001 - foreign code, the application's
            outcome.failure = ToolFailure("AgentFailed", f"the agent failed: {type(error).__name__}: {error}")
            return outcome
        if not isinstance(answer, Mapping):
            outcome.failure = ToolFailure("AgentFailed", f"{SPAWN} gave {type(answer).__name__}, expected a mapping")
            return outcome
        outcome.response = str(answer.get("output") or "")
        outcome.session_id = str(answer.get("session_id") or outcome.session_id)
        return outcome


def _accepted(function: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a function of some application takes; either name for the task, not both."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {name: value for name, value in offered.items() if name != "task" or "task" in parameters}
    return {name: value for name, value in offered.items() if name in parameters}
