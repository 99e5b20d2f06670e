"""Reads the plan, mounts the tool and registers the capabilities for other modules."""

from __future__ import annotations

import copy
import logging
from typing import Any

import attrs

from amplifier.contracts import Coordinator

from .._shared.configuration import no_limit_or_seconds, option, read_options, texts, whole_number
from ._agents import find_agent, read_agents
from ._child_sessions import BUDGET, COMPLETED, SPAWNED, ChildSessions, depth_of
from ._token_usage import Budget
from ._tool import TaskTool

logger = logging.getLogger("amplifier.modules.tools")

_MODULE = "tool-task"


@attrs.frozen(kw_only=True)
class TaskOptions:
    """How tasks are delegated.

    Attributes:
        max_depth: Levels of sessions below the first one that may have agents at work.
        max_parallel: Agents at work at the same time.
        max_total_tokens: For all delegated tasks of the first session; None for no limit.
        max_response_chars: Of one answer.
        timeout: Seconds for one agent; None for no limit.
        inherit_capabilities: Capabilities that a child session gets from its parent.
    """

    max_depth: int = option(whole_number(1), default=1)
    max_parallel: int = option(whole_number(1), default=4)
    max_total_tokens: int | None = option(whole_number(1), default=None)
    max_response_chars: int = option(whole_number(1), default=100_000)
    timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    inherit_capabilities: tuple[str, ...] = option(
        texts(),
        default=("session.working_dir", "mention_resolver", "mention_deduplicator", "session.spawn", "mcp.servers"),
    )


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount task, if the plan has agents and this session is not too deep to have any.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
    """
    options = read_options(TaskOptions, _MODULE, config)
    agents = read_agents(coordinator.config.get("agents"))
    if not agents:
        logger.info("%s: the plan has no agents, so there is no agent to give a task to", _MODULE)
        return
    depth = depth_of(coordinator)
    if depth >= options.max_depth:
        logger.debug(
            "%s: not offered in a session %d below the first, max_depth is %d", _MODULE, depth, options.max_depth
        )
        return
    shared = coordinator.get_capability(BUDGET)
    budget = shared if isinstance(shared, Budget) else Budget(options.max_total_tokens)
    children = ChildSessions(coordinator, budget, inherited=options.inherit_capabilities, timeout=options.timeout)
    tool = TaskTool(
        coordinator,
        agents,
        children,
        max_parallel=options.max_parallel,
        max_response_chars=options.max_response_chars,
    )

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
