"""tool-task: hand a task to an agent of the plan, which works on it in a child session."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier._internal.json import redact_text
from amplifier._internal.spelling import misspelt_key, suggestion
from amplifier.contracts import CHILD_STEPS, Coordinator
from amplifier.errors import (
    BudgetError,
    ExecutionCancelled,
    ExecutionTimeout,
    ModuleLoadError,
    NoOneToAskError,
)
from amplifier.events import EXECUTION_END, PROMPT_COMPLETE, PROVIDER_RESPONSE
from amplifier.models import SUB_AGENT_EVENT, ToolResult
from amplifier.models.turns import ModelAnswer

from .._shared.configuration import (
    flag,
    mapping,
    no_limit_or_seconds,
    option,
    optional,
    read_options,
    texts,
    warn_of_misspelt_key,
    whole_number,
)
from .._shared.failure import ToolFailure, shown
from ._base import BuiltinTool, characters, tool_input

__all__ = ["TaskOptions", "TaskTool", "mount"]

__amplifier_module_type__ = "tool"

_logger = logging.getLogger("amplifier.modules.tools")

_KEYS = ("name", "description", "instruction", "system", "plan")
_SECTIONS = ("session", "orchestrator", "context", "providers", "tools", "hooks", "agents")


@attrs.frozen(kw_only=True)
class TaskOptions:
    """The options of tool-task.

    Attributes:
        max_depth: Maximum number of levels of child sessions.
        max_parallel: Maximum number of agents that run at the same time.
        max_response_chars: Maximum number of characters of one response.
        timeout: Seconds for one agent, including its opening and closing. None for no limit.
        inherit_capabilities: Capabilities that a child session gets from its parent.
        agents: The agents. None for those of the plan's section ``agents``, which children inherit.
        pass_events: True to emit every event of a child in this session as ``task:agent_event``.
    """

    max_depth: int = option(whole_number(1), default=1)
    max_parallel: int = option(whole_number(1), default=4)
    max_response_chars: int = option(whole_number(1), default=100_000)
    timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    inherit_capabilities: tuple[str, ...] = option(
        texts(),
        default=(
            "session.working_dir",
            "mention_resolver",
            "mention_deduplicator",
            "session.spawn",
            "mcp.servers",
        ),
    )
    agents: Mapping[str, Any] | None = option(optional(mapping), default=None)
    pass_events: bool = option(flag, default=False)


# ── agents ────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Agent:
    """An agent of the plan.

    Attributes:
        name: Its key in the section ``agents``.
        description: A description for the model.
        overlay: Changes to the calling session's plan. Mappings are merged, and lists are replaced.
        plan: A separate plan of the agent, to be used instead. None uses the overlay.
        instruction: The system message before the task, or None.
    """

    name: str
    description: str = ""
    overlay: Mapping[str, Any] = attrs.Factory(dict)
    plan: Mapping[str, Any] | None = None
    instruction: str | None = None


def _read_agents(section: object) -> dict[str, _Agent]:
    """Read the section ``agents``, and skip everything that isn't an agent.

    The section belongs to the application.
    """
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        _logger.warning(
            "tool-task: the plan's agents are %s, expected a mapping by name",
            type(section).__name__,
        )
        return {}
    agents = {}
    for name, definition in section.items():
        if isinstance(name, str) and name and isinstance(definition, Mapping):
            agents[name] = _read_agent(name, definition)
        else:
            _logger.warning(
                "tool-task: %s in the plan's agents is not an agent, expected a mapping",
                shown(repr(name), 80),
            )
    return agents


def _read_agent(name: str, definition: Mapping[str, Any]) -> _Agent:
    for key in definition.keys() - {*_KEYS, *_SECTIONS}:
        # Applications keep their own data here, so only misspelt keys are reported.
        if (meant := misspelt_key(key, (*_KEYS, *_SECTIONS))) is not None:
            warn_of_misspelt_key("tool-task", f"$.agents.{name}.{key}", meant)
    system = definition.get("system")
    instruction = definition.get("instruction") or (
        system.get("instruction") if isinstance(system, Mapping) else None
    )
    description, plan = definition.get("description"), definition.get("plan")
    return _Agent(
        name=name,
        description=" ".join(description.split()) if isinstance(description, str) else "",
        overlay={section: definition[section] for section in _SECTIONS if section in definition},
        plan=plan if isinstance(plan, Mapping) else None,
        instruction=instruction if isinstance(instruction, str) and instruction.strip() else None,
    )


def _describe(agents: Mapping[str, _Agent]) -> str:
    """Describe the agents for the model, one per line."""
    return "\n".join(
        f"- {shown(agent.name, 200)}"
        + (f": {shown(agent.description)}" if agent.description else "")
        for agent in agents.values()
    )


def _find_agent(agents: Mapping[str, _Agent], name: str) -> _Agent:
    """Return the agent with a name.

    Raises:
        ToolFailure: There is no such agent. The message lists all agents.
    """
    if name in agents:
        return agents[name]
    hint = suggestion(name, agents)
    known = ", ".join(shown(known, 60) for known in agents) or "none"
    raise ToolFailure(
        "UnknownAgent",
        f"there is no agent {shown(ascii(name), 80)}{hint or '.'} Available: {known}",
    )


# ── child sessions ────────────────────────────────────────────────────────────────────────────────

_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


# The usage is counted at every response, so that a cancelled child is counted, too.


@attrs.define
class _TokenUsage:
    """The usage of a child session and of its own children.

    Attributes:
        calls: The number of model calls.
        tokens: The number of tokens by kind.
        cost: The cost in US dollars. None if no call reported one.
    """

    calls: int = 0
    tokens: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(_COUNTED, 0))
    cost: Decimal | None = None

    def add(self, usage: Mapping[str, Any]) -> None:
        """Add the usage of a response, or of a child's child."""
        calls, reported = usage.get("model_calls", 1), ModelAnswer.read({"usage": usage})
        self.calls += calls if isinstance(calls, int) else 1
        for name in _COUNTED:
            self.tokens[name] += getattr(reported, name) or 0
        if reported.cost is not None:
            self.cost = (self.cost or Decimal(0)) + reported.cost

    def to_dict(self) -> dict[str, Any]:
        """Return the usage for results and events."""
        usage: dict[str, Any] = {"model_calls": self.calls}
        usage |= {
            name: count for name, count in self.tokens.items() if count or name in _COUNTED[:2]
        }
        usage["total_tokens"] = self.tokens["input_tokens"] + self.tokens["output_tokens"]
        return usage if self.cost is None else {**usage, "cost_usd": str(self.cost)}


_DEPTH = "self_delegation_depth"
"""The capability with the number of sessions above this one. Published modules use its name."""
_REHEARSAL = "task.rehearsal"
"""The capability of a session that is opened only as a trial. Its own agents are tried as well."""
_SPAWNED, _COMPLETED = "task:agent_spawned", "task:agent_completed"

_FIRST, _LAST = -1_000_000, 1_000_000
_COMPLETED_SECONDS = 5.0
"""Seconds for emitting the end of a child while the call is being cancelled."""
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:-]")


@attrs.define(kw_only=True)
class _Outcome:
    """The outcome of one task.

    Attributes:
        session_id: The id of the child session.
        response: The response, or the text up to the failure.
        failure: The error that made the response incomplete. None if it is complete.
        has_completed: True if the child's loop reported its end, even if it was asked to stop.
        usage: The usage of the child and its own children.
    """

    session_id: str
    response: str = ""
    failure: ToolFailure | None = None
    has_completed: bool = False
    usage: _TokenUsage = attrs.Factory(_TokenUsage)


def _child_id(parent: str, agent: str) -> str:
    """Make an id that names the parent session and the agent."""
    return f"{parent[:120]}-{uuid.uuid4().hex[:16]}_{_NOT_IN_AN_ID.sub('-', agent)[:60]}"


def _depth_of(coordinator: Coordinator) -> int:
    """Return the number of sessions above this one."""
    depth = coordinator.get_capability(_DEPTH)
    return depth if isinstance(depth, int) else 0


# ── the tool ──────────────────────────────────────────────────────────────────────────────────────

_SPAWN = "session.spawn"
"""The capability of applications that open child sessions themselves."""

# A call opens, runs and closes the child session. It runs inside the parent's turn, so everything
# that ends the turn (its deadline, its token, a cancelled scope around it) ends the child first,
# and the child is closed before the call returns.


class TaskTool(BuiltinTool):
    """The tool that hands tasks to agents.

    Args:
        coordinator: The coordinator of the session.
        agents: The agents by name.
        options: The configuration.
    """

    _name = "task"
    _description = (
        "Hand a task to an agent, which works on it independently and answers once. It can't see "
        "this conversation or ask questions, so put everything it needs into the instruction, and "
        "state the result that you expect. Several calls in one response run in parallel. Agents:\n"
    )
    _input = tool_input(
        agent=option(characters(1, 200), doc="The agent's name."),
        instruction=option(characters(1, 200_000), doc="The whole task."),
    )

    def __init__(
        self, coordinator: Coordinator, agents: Mapping[str, _Agent], options: TaskOptions
    ) -> None:
        self._coordinator = coordinator
        self._agents = agents
        self._options = options
        self._slots = anyio.Semaphore(options.max_parallel)
        self._description += _describe(agents)
        # Other names couldn't be sent to a model unchanged.
        self._agent_names = [name for name in agents if shown(name, 200) == name]

    @property
    def repeatable(self) -> bool | None:  # type: ignore[override]  # a constant elsewhere
        """True if the calls of children are recorded, so that an interrupted child continues."""
        capability = self._coordinator.get_capability
        return True if capability(CHILD_STEPS) is not None and capability(_SPAWN) is None else None

    def get_schema(self) -> dict[str, Any]:
        """Return the schema of the input, with the names of agents as examples."""
        schema = super().get_schema()
        schema["properties"]["agent"]["examples"] = list(self._agent_names)
        return schema

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        agent = _find_agent(self._agents, values["agent"])
        outcome = await self.delegate(agent, values["instruction"])
        response = outcome.response.encode("utf-8", "backslashreplace").decode()
        output: dict[str, Any] = {
            "response": response[: self._options.max_response_chars],
            "agent": shown(agent.name),
            "session_id": outcome.session_id,
            "usage": outcome.usage.to_dict(),
        }
        if len(response) > self._options.max_response_chars:
            output["truncated"] = True
            output["total_chars"] = len(response)
        if outcome.failure is None:
            return ToolResult(output=output)
        # If a result has an output, the model gets that and not the error.
        return self._failed(outcome.failure, {**output, "failure": str(outcome.failure)})

    async def delegate(self, agent: _Agent, instruction: str) -> _Outcome:
        """Run an agent once a slot is free. Failures are part of the outcome.

        Raises:
            NoOneToAskError: The child has a question. Its turn is kept so that it can be resumed.
        """
        async with self._slots:
            spawn = self._coordinator.get_capability(_SPAWN)
            if spawn is None:
                return await self._run_in_child(agent, instruction)
            return await self._spawn(spawn, agent, instruction)

    async def _spawn(
        self, spawn: Callable[..., object], agent: _Agent, instruction: str
    ) -> _Outcome:
        """Let the application run the agent, count its usage and set its limits."""
        outcome = _Outcome(session_id=_child_id(self._coordinator.session_id, agent.name))
        keywords = {
            "agent_name": agent.name,
            "instruction": instruction,
            "task": instruction,
            "parent_session": self._coordinator.session,
            "agent_configs": self._coordinator.config.get("agents") or {},
            "sub_session_id": outcome.session_id,
        }
        try:
            result = spawn(**_accepted(spawn, keywords))
            result = await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 — the application's code
            outcome.failure = ToolFailure(
                "AgentFailed", f"the agent failed: {type(error).__name__}: {error}"
            )
            return outcome
        if not isinstance(result, Mapping):
            outcome.failure = ToolFailure(
                "AgentFailed", f"{_SPAWN} returned {type(result).__name__}, expected a mapping"
            )
            return outcome
        outcome.response = str(result.get("output") or "")
        outcome.session_id = str(result.get("session_id") or outcome.session_id)
        return outcome

    # ── child sessions ──

    async def _run_in_child(self, agent: _Agent, instruction: str) -> _Outcome:
        """Run an agent in a child session. Raise the same errors as `delegate`."""
        outcome = _Outcome(session_id=_child_id(self._coordinator.session_id, agent.name))
        ids = {
            "agent": agent.name,
            "sub_session_id": outcome.session_id,
            "parent_session_id": self._coordinator.session_id,
        }
        await self._coordinator.hooks.emit(
            _SPAWNED, {**ids, "depth": _depth_of(self._coordinator) + 1}
        )
        status = "cancelled"
        try:
            await self._run_in_time(agent, instruction, outcome)
            status = "completed" if outcome.failure is None else "failed"
        finally:
            details = {
                **ids,
                "success": status == "completed",
                "status": status,
                "usage": outcome.usage.to_dict(),
            }
            if outcome.failure is not None:
                details["error"] = {"type": outcome.failure.kind, "message": str(outcome.failure)}
            with anyio.move_on_after(_COMPLETED_SECONDS, shield=True):
                await self._coordinator.hooks.emit(_COMPLETED, details)
        return outcome

    async def _run_in_time(self, agent: _Agent, instruction: str, outcome: _Outcome) -> None:
        with anyio.move_on_after(self._options.timeout) as scope:
            try:
                await self._run_child(agent, instruction, outcome)
            except NoOneToAskError:
                # The caller's turn is resumed once there is an answer.
                raise
            except Exception as error:  # noqa: BLE001 — the plan and the modules of the child
                outcome.failure = _failure_from(error)
        if scope.cancelled_caught:
            outcome.failure = ToolFailure(
                "Timeout",
                f"the agent timed out after {self._options.timeout:g} s",
            )
        if outcome.failure is not None and outcome.failure.kind == "Cancelled":
            # If the parent was cancelled and the child with it, this raises the cancellation of the
            # call.
            await anyio.lowlevel.checkpoint()

    async def _run_child(self, agent: _Agent, instruction: str, outcome: _Outcome) -> None:
        child = self._make_child(agent, outcome)
        host: Coordinator = child.coordinator
        child_steps = self._coordinator.get_capability(CHILD_STEPS)
        if child_steps is not None:
            task = hashlib.sha256(
                f"{agent.name}\n{instruction}".encode("utf-8", "backslashreplace")
            ).hexdigest()
            steps = child_steps(task[:16])
            host.register_step_wrapper(steps)
            host.register_capability(CHILD_STEPS, steps.of_child)
        if self._options.pass_events:
            self._pass_events_on(host, {"agent": agent.name, "sub_session_id": outcome.session_id})
        async with child:
            context = host.get("context")
            if agent.instruction is not None and context is not None:
                await context.add_message({"role": "system", "content": agent.instruction})
            outcome.response = await child.execute(instruction)
            if host.cancellation.is_cancelled and not outcome.has_completed:
                outcome.failure = ToolFailure(
                    "Stopped", "the agent was asked to stop before it had finished"
                )

    async def rehearse(self, agent: _Agent) -> None:
        """Open and close an agent with its own plan, to report problems before its first task.

        The agent's hooks are left out.

        Raises:
            ModuleLoadError: The agent can't be opened.
        """
        if agent.plan is None:
            return
        outcome = _Outcome(session_id=_child_id(self._coordinator.session_id, agent.name))
        silent = attrs.evolve(agent, plan={**agent.plan, "hooks": []})
        try:
            child = self._make_child(silent, outcome)
            child.coordinator.register_capability(_REHEARSAL, True)
            async with child:
                pass
        except Exception as error:
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            reason = getattr(error, "reason_code", "unknown")
            message = f"sub-agent {agent.name!r} cannot be opened: {redact_text(str(error))}"
            raise ModuleLoadError(message, module_id="tool-task", reason_code=reason) from error

    def _make_child(self, agent: _Agent, outcome: _Outcome) -> Any:
        has_own_plan, plan = agent.plan is not None, agent.plan or agent.overlay
        child: Any = self._coordinator.session.fork(
            dict(plan), session_id=outcome.session_id, inherit=not has_own_plan
        )
        self._prepare(child.coordinator, outcome)
        return child

    def _prepare(self, host: Coordinator, outcome: _Outcome) -> None:
        """Register the capabilities of the child, and the handlers that observe it."""
        for name in self._options.inherit_capabilities:
            if (value := self._coordinator.get_capability(name)) is not None:
                host.register_capability(name, value)
        host.register_capability(_DEPTH, _depth_of(self._coordinator) + 1)

        def record_usage(_: str, data: Mapping[str, Any]) -> None:
            if isinstance(data.get("usage"), Mapping):
                outcome.usage.add(data["usage"])

        def record_response(_: str, data: Mapping[str, Any]) -> None:
            text = data.get("response")
            outcome.response = text if isinstance(text, str) and text else outcome.response

        def record_end(_: str, data: Mapping[str, Any]) -> None:
            outcome.has_completed = True

        # These handlers run before all others, because a gate that denies an event stops it.
        for event in (PROVIDER_RESPONSE, _COMPLETED):
            host.hooks.register(event, record_usage, _FIRST, "tool-task", fields=("usage",))
        host.hooks.register(PROMPT_COMPLETE, record_end, _FIRST, "tool-task", fields=())
        host.hooks.register(
            EXECUTION_END, record_response, _FIRST, "tool-task", fields=("response",)
        )

    def _pass_events_on(self, host: Coordinator, ids: Mapping[str, Any]) -> None:
        hooks = self._coordinator.hooks
        has_handlers = getattr(hooks, "has_handlers", lambda _: True)

        async def pass_on(event: str, data: dict[str, Any]) -> None:
            if has_handlers(SUB_AGENT_EVENT):
                await hooks.emit(SUB_AGENT_EVENT, {**ids, "event": event, "data": data})

        # This handler runs after all others, so that it passes on the final payload. The handlers
        # that it calls have their own deadlines.
        host.hooks.register("*", pass_on, _LAST, "tool-task", timeout=None)


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
    reason = shown(redact_text(str(error)), 1000)
    return ToolFailure("AgentFailed", f"the agent failed: {type(error).__name__}: {reason}")


def _accepted(function: Callable[..., object], keywords: dict[str, object]) -> dict[str, object]:
    """Return the keywords that a function accepts, with only one of the names for the task."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {
            name: value
            for name, value in keywords.items()
            if name != "task" or "task" in parameters
        }
    return {name: value for name, value in keywords.items() if name in parameters}


_MODULE = "tool-task"
_FORMER = {
    "max_total_tokens": (
        'use the plan\'s session.budget, which includes children: {"tokens": 200000}'
    )
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount task, if the plan has agents and ``max_depth`` allows this session to run them.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `TaskOptions`.

    Raises:
        PlanError: The config is invalid.
        ModuleLoadError: An agent with its own plan can't be opened, or another tool already has the
            name.
    """
    options = read_options(TaskOptions, _MODULE, config, former=_FORMER)
    agents = _read_agents(
        coordinator.config.get("agents") if options.agents is None else options.agents
    )
    if not agents:
        _logger.info("%s: not mounted, because the plan has no agents", _MODULE)
        return
    depth = _depth_of(coordinator)
    if depth >= options.max_depth:
        _logger.debug(
            "%s: not mounted in a session %d levels below the first, max_depth is %d",
            _MODULE,
            depth,
            options.max_depth,
        )
        return
    tool = TaskTool(coordinator, agents, options)
    if any(agent.plan is not None for agent in agents.values()):
        if TaskTool._name in (coordinator.get("tools") or {}):
            raise ModuleLoadError(
                "there is already a tool named 'task', which is the name of the tool that calls "
                "sub-agents; rename yours, for example @tool(name='errand')",
                module_id=_MODULE,
            )
        if depth == 0 or coordinator.get_capability(_REHEARSAL):
            for agent in agents.values():
                await tool.rehearse(agent)

    async def list_agents() -> list[str]:
        return list(agents)

    async def get_agent(name: str) -> dict[str, Any]:
        return copy.deepcopy(dict(agents[name].overlay)) if name in agents else {}

    async def spawn_agent(name: str, task: str) -> str:
        outcome = await tool.delegate(_find_agent(agents, name), task)
        if outcome.failure is not None:
            raise outcome.failure
        return outcome.response

    coordinator.register_contributor(
        "observability.events", _MODULE, lambda: [_SPAWNED, _COMPLETED]
    )
    coordinator.register_capability("agents.list", list_agents)
    coordinator.register_capability("agents.get", get_agent)
    coordinator.register_capability("agents.spawn", spawn_agent)
    await coordinator.mount("tools", tool)
