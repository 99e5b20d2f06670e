"""tool-task: hand a task to an agent of the plan, which works on it in a child session.

A call opens, runs and closes the child session, and counts its tokens. It runs inside the parent's turn, so whatever ends that
turn (its deadline, its token, a cancelled scope around it) ends the child first, and the child has closed before the call
returns.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import re
import uuid
from collections.abc import Mapping
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
    """How tasks are delegated.

    Attributes:
        max_depth: Levels of sessions below the first one that may have agents at work.
        max_parallel: Agents at work at the same time.
        max_response_chars: Of one answer.
        timeout: Seconds for one agent, its opening and closing included; None for no limit.
        inherit_capabilities: Capabilities that a child session gets from its parent.
        agents: Instead of the plan's section ``agents``, which children inherit.
        pass_events: Emit every event of a child in this session as ``task:agent_event``.
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
# The plan's section ``agents``: names and what each changes in the plan of the session it is called from; pure.


@attrs.frozen
class _Agent:
    """An agent of the plan.

    Attributes:
        overlay: Laid over the plan of the session: mappings merge, lists are replaced.
        plan: In place of both.
        instruction: The system message before its task.
    """

    name: str
    description: str = ""
    overlay: Mapping[str, Any] = attrs.Factory(dict)
    plan: Mapping[str, Any] | None = None
    instruction: str | None = None


def _read_agents(section: Any) -> dict[str, _Agent]:
    """Read the section, which is the application's own; what is no agent in it is left alone."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        _logger.warning(
            "tool-task: the plan's agents are %s, expected a mapping by name",
            type(section).__name__,
        )
        return {}
    agents = {}
    for name, given in section.items():
        if isinstance(name, str) and name and isinstance(given, Mapping):
            agents[name] = _read_agent(name, given)
        else:
            _logger.warning(
                "tool-task: %s in the plan's agents is no agent, expected a mapping",
                shown(repr(name), 80),
            )
    return agents


def _read_agent(name: str, given: Mapping[str, Any]) -> _Agent:
    for key in given.keys() - {*_KEYS, *_SECTIONS}:
        # Applications keep data of their own here, so a key that resembles no other is not reported.
        if (meant := misspelt_key(key, (*_KEYS, *_SECTIONS))) is not None:
            warn_of_misspelt_key("tool-task", f"$.agents.{name}.{key}", meant)
    system = given.get("system")
    instruction = given.get("instruction") or (
        system.get("instruction") if isinstance(system, Mapping) else None
    )
    description, plan = given.get("description"), given.get("plan")
    return _Agent(
        name=name,
        description=" ".join(description.split()) if isinstance(description, str) else "",
        overlay={section: given[section] for section in _SECTIONS if section in given},
        plan=plan if isinstance(plan, Mapping) else None,
        instruction=instruction if isinstance(instruction, str) and instruction.strip() else None,
    )


def _describe(agents: Mapping[str, _Agent]) -> str:
    """The agents as text for the model, one per line."""
    return "\n".join(
        f"- {shown(agent.name, 200)}"
        + (f": {shown(agent.description)}" if agent.description else "")
        for agent in agents.values()
    )


def _find_agent(agents: Mapping[str, _Agent], name: str) -> _Agent:
    """The agent of a name.

    Raises:
        ToolFailure: There is none; the message lists those there are.
    """
    if name in agents:
        return agents[name]
    hint = suggestion(name, agents)
    known = ", ".join(shown(known, 60) for known in agents) or "none"
    raise ToolFailure(
        "UnknownAgent",
        f"there is no agent {shown(ascii(name), 80)}{hint or '.'} Available: {known}",
    )


# ── child sessions ─────────────────────────────────────────────────────────────────────────────────

_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@attrs.define
class _TokenUsage:
    """What a child and its own children consumed, counted as their models answer, so that a cancelled child is counted, too.

    Attributes:
        calls: Of models.
        cost: In US dollars; None if no call reports one.
    """

    calls: int = 0
    tokens: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(_COUNTED, 0))
    cost: Decimal | None = None

    def add(self, usage: Mapping[str, Any]) -> None:
        """Add the usage of a response, or what a child of the child consumed."""
        calls, reported = usage.get("model_calls", 1), ModelAnswer.read({"usage": usage})
        self.calls += calls if isinstance(calls, int) else 1
        for name in _COUNTED:
            self.tokens[name] += getattr(reported, name) or 0
        if reported.cost is not None:
            self.cost = (self.cost or Decimal(0)) + reported.cost

    def shown(self) -> dict[str, Any]:
        """For results and events."""
        shown: dict[str, Any] = {"model_calls": self.calls}
        shown |= {
            name: count for name, count in self.tokens.items() if count or name in _COUNTED[:2]
        }
        shown["total_tokens"] = self.tokens["input_tokens"] + self.tokens["output_tokens"]
        return shown if self.cost is None else {**shown, "cost_usd": str(self.cost)}


_DEPTH = "self_delegation_depth"
"""The capability with the number of sessions above this one; published modules use this name."""
_REHEARSAL = "task.rehearsal"
"""The capability of a session that is opened only to see whether it can be; its agents are then opened as well."""
_SPAWNED, _COMPLETED = "task:agent_spawned", "task:agent_completed"

_FIRST, _LAST = -1_000_000, 1_000_000
_FAREWELL = 5.0
"""Seconds for telling that a child has ended, while the call is already being cancelled."""
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._:-]")


@attrs.define(kw_only=True)
class _Outcome:
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
    consumed: _TokenUsage = attrs.Factory(_TokenUsage)


def _child_id(parent: str, agent: str) -> str:
    """An id that names the parent session and the agent."""
    return f"{parent[:120]}-{uuid.uuid4().hex[:16]}_{_NOT_IN_AN_ID.sub('-', agent)[:60]}"


def _depth_of(coordinator: Coordinator) -> int:
    """How many sessions are above this one."""
    depth = coordinator.get_capability(_DEPTH)
    return depth if isinstance(depth, int) else 0


# ── the tool ───────────────────────────────────────────────────────────────────────────────────────

_SPAWN = "session.spawn"
"""The capability through which an application opens child sessions its own way."""


class TaskTool(BuiltinTool):
    """Hands tasks to agents.

    Args:
        coordinator: The session's.
        agents: Who there is.
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
        self, coordinator: Coordinator, agents: Mapping[str, _Agent], options: TaskOptions
    ) -> None:
        self._coordinator = coordinator
        self._agents = agents
        self._options = options
        self._slots = anyio.Semaphore(options.max_parallel)
        self._description += _describe(agents)
        # As in the description: names that cannot be shown as they are could not be sent to a model either.
        self._agent_names = [name for name in agents if shown(name, 200) == name]

    @property
    def repeatable(self) -> bool | None:  # type: ignore[override]  # a constant elsewhere
        """A call that was cut off may run again where the calls of children are recorded: each child goes on where it was."""
        capability = self._coordinator.get_capability
        return True if capability(CHILD_STEPS) is not None and capability(_SPAWN) is None else None

    def get_schema(self) -> dict[str, Any]:
        """The input, with the names of agents as examples."""
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
            "usage": outcome.consumed.shown(),
        }
        if len(response) > self._options.max_response_chars:
            output["truncated"] = True
            output["total_chars"] = len(response)
        if outcome.failure is None:
            return ToolResult(output=output)
        # The model is shown the output of a result, if it has one.
        return self._failed(outcome.failure, {**output, "failure": str(outcome.failure)})

    async def delegate(self, agent: _Agent, instruction: str) -> _Outcome:
        """Have an agent work on a task when there is a place for it; only cancellation is raised."""
        async with self._slots:
            spawn = self._coordinator.get_capability(_SPAWN)
            if spawn is None:
                return await self._run_in_child(agent, instruction)
            return await self._spawned(spawn, agent, instruction)

    async def _spawned(self, spawn: Any, agent: _Agent, instruction: str) -> _Outcome:
        """Leave it to the application, which then also counts and limits."""
        outcome = _Outcome(session_id=_child_id(self._coordinator.session_id, agent.name))
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
            outcome.failure = ToolFailure(
                "AgentFailed", f"the agent failed: {type(error).__name__}: {error}"
            )
            return outcome
        if not isinstance(answer, Mapping):
            outcome.failure = ToolFailure(
                "AgentFailed", f"{_SPAWN} gave {type(answer).__name__}, expected a mapping"
            )
            return outcome
        outcome.response = str(answer.get("output") or "")
        outcome.session_id = str(answer.get("session_id") or outcome.session_id)
        return outcome

    # ── child sessions ──

    async def _run_in_child(self, agent: _Agent, instruction: str) -> _Outcome:
        """Have an agent work on a task in a child session; only cancellation is raised."""
        outcome = _Outcome(session_id=_child_id(self._coordinator.session_id, agent.name))
        about = {
            "agent": agent.name,
            "sub_session_id": outcome.session_id,
            "parent_session_id": self._coordinator.session_id,
        }
        await self._coordinator.hooks.emit(
            _SPAWNED, {**about, "depth": _depth_of(self._coordinator) + 1}
        )
        status = "cancelled"
        try:
            await self._run_in_time(agent, instruction, outcome)
            status = "completed" if outcome.failure is None else "failed"
        finally:
            details = {
                **about,
                "success": status == "completed",
                "status": status,
                "usage": outcome.consumed.shown(),
            }
            if outcome.failure is not None:
                details["error"] = {"type": outcome.failure.kind, "message": str(outcome.failure)}
            with anyio.move_on_after(_FAREWELL, shield=True):
                await self._coordinator.hooks.emit(_COMPLETED, details)
        return outcome

    async def _run_in_time(self, agent: _Agent, instruction: str, outcome: _Outcome) -> None:
        with anyio.move_on_after(self._options.timeout) as scope:
            try:
                await self._run_child(agent, instruction, outcome)
            # Foreign code: everything that the child's modules, its plan or the application's own spawner may raise.
            except NoOneToAskError:  # the caller's turn is left to be resumed
                raise
            except Exception as error:  # noqa: BLE001
                outcome.failure = _failure_from(error)
        if scope.cancelled_caught:
            outcome.failure = ToolFailure(
                "Timeout",
                f"the agent was not finished after {self._options.timeout:g} s, and ended",
            )
        if outcome.failure is not None and outcome.failure.kind == "Cancelled":
            # The child is cancelled with the parent on its own; if that is why, this raises the cancellation of this call.
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
                    "Stopped", "the agent was asked to stop before it was finished"
                )

    async def rehearse(self, agent: _Agent) -> None:
        """Open an agent that has a plan of its own, without its hooks, and close it: what it lacks is known before its first task.

        Raises:
            ModuleLoadError: It cannot be opened.
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
            words = f"sub-agent {agent.name!r} cannot be opened: {redact_text(str(error))}"
            raise ModuleLoadError(words, module_id="tool-task", reason_code=reason) from error

    def _make_child(self, agent: _Agent, outcome: _Outcome) -> Any:
        is_own, plan = agent.plan is not None, agent.plan or agent.overlay
        child: Any = self._coordinator.session.fork(
            dict(plan), session_id=outcome.session_id, inherit=not is_own
        )
        self._prepare(child.coordinator, outcome)
        return child

    def _prepare(self, host: Coordinator, outcome: _Outcome) -> None:
        """Register the capabilities of the child, and the handlers that observe it."""
        for name in self._options.inherit_capabilities:
            if (value := self._coordinator.get_capability(name)) is not None:
                host.register_capability(name, value)
        host.register_capability(_DEPTH, _depth_of(self._coordinator) + 1)

        def note_usage(_: str, data: Mapping[str, Any]) -> None:
            if isinstance(data.get("usage"), Mapping):
                outcome.consumed.add(data["usage"])

        def note_words(_: str, data: Mapping[str, Any]) -> None:
            words = data.get("response")
            outcome.response = words if isinstance(words, str) and words else outcome.response

        def note_end(_: str, data: Mapping[str, Any]) -> None:
            outcome.has_completed = True

        # First of all handlers, for a gate that denies keeps an event from those after it.
        for event in (PROVIDER_RESPONSE, _COMPLETED):
            host.hooks.register(event, note_usage, _FIRST, "tool-task", fields=("usage",))
        host.hooks.register(PROMPT_COMPLETE, note_end, _FIRST, "tool-task", fields=())
        host.hooks.register(EXECUTION_END, note_words, _FIRST, "tool-task", fields=("response",))

    def _pass_events_on(self, host: Coordinator, about: Mapping[str, Any]) -> None:
        hooks = self._coordinator.hooks
        is_heard = getattr(hooks, "has_handlers", lambda _: True)

        async def pass_on(event: str, data: dict[str, Any]) -> None:
            if is_heard(SUB_AGENT_EVENT):
                await hooks.emit(SUB_AGENT_EVENT, {**about, "event": event, "data": data})

        # Last of all handlers, so that it passes on payloads as they finally are; in time of the handlers above.
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
    words = shown(redact_text(str(error)), 1000)
    return ToolFailure("AgentFailed", f"the agent failed: {type(error).__name__}: {words}")


def _accepted(function: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a function of some application takes; either name for the task, not both."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {
            name: value for name, value in offered.items() if name != "task" or "task" in parameters
        }
    return {name: value for name, value in offered.items() if name in parameters}


_MODULE = "tool-task"
_FORMER = {
    "max_total_tokens": 'use the plan\'s session.budget, which holds for children, too: {"tokens": 200000}'
}


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
    agents = _read_agents(
        coordinator.config.get("agents") if options.agents is None else options.agents
    )
    if not agents:
        _logger.info("%s: the plan has no agents, so there is no agent to give a task to", _MODULE)
        return
    depth = _depth_of(coordinator)
    if depth >= options.max_depth:
        _logger.debug(
            "%s: not offered in a session %d below the first, max_depth is %d",
            _MODULE,
            depth,
            options.max_depth,
        )
        return
    tool = TaskTool(coordinator, agents, options)
    if any(agent.plan is not None for agent in agents.values()):
        if TaskTool._name in (coordinator.get("tools") or {}):
            raise ModuleLoadError(
                "a tool is called 'task' already, and sub-agents are called through a tool of this name; give yours another, "
                "as in @tool(name='errand')",
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
