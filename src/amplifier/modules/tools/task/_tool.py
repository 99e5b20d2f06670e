"""task: one task for one agent."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import anyio

from amplifier.contracts import CHILD_STEPS, Coordinator
from amplifier.errors import ModuleLoadError
from amplifier.models import ToolResult

from ..._shared.configuration import read_options
from ..._shared.failure import ToolFailure, shown
from .._base import BuiltinTool, characters, option, tool_input
from ._child_sessions import (
    COMPLETED,
    REHEARSAL,
    SPAWNED,
    Agent,
    ChildSessions,
    Outcome,
    TaskOptions,
    child_id,
    depth_of,
    describe,
    find_agent,
    read_agents,
)

logger = logging.getLogger("amplifier.modules.tools")


SPAWN = "session.spawn"
"""The capability through which an application opens child sessions its own way."""


class TaskTool(BuiltinTool):
    """Hands tasks to agents.

    Args:
        coordinator: The session's.
        agents: Who there is.
        children: Runs them.
        options: The configuration.
    """

    _name = "task"
    _description = (
        "Hand a task to an agent, which works on it on its own and answers once. It knows nothing of this conversation and "
        "cannot ask back: put everything it needs into the instruction, and state what to return. Several calls at once run "
        "side by side. Agents:\n"
    )
    _input = tool_input(
        agent=option(characters(1, 200), doc="The agent's name."),
        instruction=option(characters(1, 200_000), doc="The whole task."),
    )

    def __init__(
        self,
        coordinator: Coordinator,
        agents: Mapping[str, Agent],
        children: ChildSessions,
        options: TaskOptions,
    ) -> None:
        self._coordinator = coordinator
        self._agents = agents
        self._children = children
        self._slots = anyio.Semaphore(options.max_parallel)
        self._max_response_chars = options.max_response_chars
        self._words = self._description + describe(agents)
        # As in the description: names that cannot be shown as they are could not be sent to a model either.
        self._agent_names = [name for name in agents if shown(name, 200) == name]

    @property
    def repeatable(self) -> bool | None:  # type: ignore[override]  # a constant elsewhere
        """A call that was cut off may run again where the calls of children are recorded: each child goes on where it was."""
        capability = self._coordinator.get_capability
        return True if capability(CHILD_STEPS) is not None and capability(SPAWN) is None else None

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
        # The model is shown the output of a result, if it has one.
        return self._failed(outcome.failure, {**output, "failure": str(outcome.failure)})

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


_MODULE = "tool-task"
_FORMER = {"max_total_tokens": 'use the plan\'s session.budget, which holds for children, too: {"tokens": 200000}'}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount task, if the plan has agents and this session is not too deep to have any.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        ModuleLoadError: An agent with a plan of its own cannot be opened, or another tool has the name.
    """
    options = read_options(TaskOptions, _MODULE, config, former=_FORMER)
    agents = read_agents(coordinator.config.get("agents") if options.agents is None else options.agents)
    if not agents:
        logger.info("%s: the plan has no agents, so there is no agent to give a task to", _MODULE)
        return
    depth = depth_of(coordinator)
    if depth >= options.max_depth:
        logger.debug(
            "%s: not offered in a session %d below the first, max_depth is %d", _MODULE, depth, options.max_depth
        )
        return
    children = ChildSessions(coordinator, options)
    if any(agent.plan is not None for agent in agents.values()):
        if TaskTool._name in (coordinator.get("tools") or {}):
            raise ModuleLoadError(
                "a tool is called 'task' already, and sub-agents are called through a tool of this name; give yours another, "
                "as in @tool(name='errand')",
                module_id=_MODULE,
            )
        if depth == 0 or coordinator.get_capability(REHEARSAL):
            for agent in agents.values():
                await children.rehearse(agent)
    tool = TaskTool(coordinator, agents, children, options)

    async def list_agents() -> list[str]:
        return list(agents)

    async def get_agent(name: str) -> dict[str, Any]:
        return copy.deepcopy(dict(agents[name].overlay)) if name in agents else {}

    async def spawn_agent(name: str, task: str) -> str:
        outcome = await tool.delegate(find_agent(agents, name), task)
        if outcome.failure is not None:
            raise outcome.failure
        return outcome.response

    coordinator.register_contributor("observability.events", _MODULE, lambda: [SPAWNED, COMPLETED])
    coordinator.register_capability("agents.list", list_agents)
    coordinator.register_capability("agents.get", get_agent)
    coordinator.register_capability("agents.spawn", spawn_agent)
    await coordinator.mount("tools", tool)
