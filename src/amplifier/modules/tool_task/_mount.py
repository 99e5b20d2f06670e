"""Reads the plan, mounts the tool and offers what it can do to other modules."""

from __future__ import annotations

import copy
import logging
from typing import Any

from amplifier.contracts import Coordinator

from .._tool_base import count, read_config, seconds, texts
from ._agents import find_agent, read_agents
from ._children import BUDGET, COMPLETED, SPAWNED, Children, depth_of
from ._tool import TaskTool
from ._usage import Budget

logger = logging.getLogger("amplifier.modules.tools")

_MODULE = "tool-task"
_INHERITED = ("session.working_dir", "mention_resolver", "mention_deduplicator", "session.spawn")


def _optional_seconds(value: Any) -> str | None:
    return None if value is None else seconds(value)


_CHECKS = {
    "max_depth": count(1),
    "max_parallel": count(1),
    "max_total_tokens": count(1),
    "max_response_chars": count(1),
    "timeout": _optional_seconds,
    "inherit_capabilities": texts(),
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount task, if the plan has agents and this session is not too deep to have any.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
    """
    given = read_config(_MODULE, config, _CHECKS)
    agents = read_agents(coordinator.config.get("agents"))
    if not agents:
        logger.info("%s: the plan has no agents, so there is nobody to hand a task to", _MODULE)
        return
    depth, deepest = depth_of(coordinator), given.get("max_depth", 1)
    if depth >= deepest:
        logger.debug("%s: not offered in a session %d below the first, max_depth is %d", _MODULE, depth, deepest)
        return
    shared = coordinator.get_capability(BUDGET)
    budget = shared if isinstance(shared, Budget) else Budget(given.get("max_total_tokens"))
    children = Children(
        coordinator,
        budget,
        inherited=tuple(given.get("inherit_capabilities", _INHERITED)),
        timeout=given.get("timeout", 1800.0),
    )
    limits = {name: given[name] for name in ("max_parallel", "max_response_chars") if name in given}
    tool = TaskTool(coordinator, agents, children, **limits)

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
