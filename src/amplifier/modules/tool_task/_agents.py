"""The plan's section ``agents``: names and what each changes in the plan of the session it is called from; pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier._spelling import suggestion

from .._shared.configuration import misspelt_key, warn_of_misspelt_key
from .._tool_base import ToolFailure, shown

logger = logging.getLogger("amplifier.modules.tools")

_KEYS = ("name", "description", "instruction", "system")
_SECTIONS = ("session", "orchestrator", "context", "providers", "tools", "hooks", "agents")
_MOST_SHOWN = 50


@attrs.frozen
class Agent:
    """An agent of the plan.

    Attributes:
        overlay: Laid over the plan of the session: mappings merge, lists are replaced.
        instruction: The system message before its task.
    """

    name: str
    description: str = ""
    overlay: Mapping[str, Any] = attrs.Factory(dict)
    instruction: str | None = None


def read_agents(section: Any) -> dict[str, Agent]:
    """Read the section, which is the application's own; what is no agent in it is left alone."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        logger.warning("tool-task: the plan's agents are %s, expected a mapping by name", type(section).__name__)
        return {}
    agents = {}
    for name, given in section.items():
        if isinstance(name, str) and name and isinstance(given, Mapping):
            agents[name] = _read_agent(name, given)
        else:
            logger.warning("tool-task: %s in the plan's agents is no agent, expected a mapping", shown(repr(name), 80))
    return agents


def _read_agent(name: str, given: Mapping[str, Any]) -> Agent:
    for key in given.keys() - {*_KEYS, *_SECTIONS}:
        # Applications keep data of their own here, so a key that resembles no other is not reported.
        if (meant := misspelt_key(key, (*_KEYS, *_SECTIONS))) is not None:
            warn_of_misspelt_key("tool-task", f"$.agents.{name}.{key}", meant)
    system = given.get("system")
    instruction = given.get("instruction") or (system.get("instruction") if isinstance(system, Mapping) else None)
    description = given.get("description")
    return Agent(
        name=name,
        description=" ".join(description.split()) if isinstance(description, str) else "",
        overlay={section: given[section] for section in _SECTIONS if section in given},
        instruction=instruction if isinstance(instruction, str) and instruction.strip() else None,
    )


def describe(agents: Mapping[str, Agent]) -> str:
    """The agents as text for the model, one per line."""
    lines = [
        f"- {shown(agent.name, 200)}" + (f": {shown(agent.description)}" if agent.description else "")
        for agent in list(agents.values())[:_MOST_SHOWN]
    ]
    if len(agents) > _MOST_SHOWN:
        lines.append(f"- and {len(agents) - _MOST_SHOWN} more")
    return "\n".join(lines)


def find_agent(agents: Mapping[str, Agent], name: str) -> Agent:
    """The agent of a name.

    Raises:
        ToolFailure: There is none; the message lists those there are.
    """
    if name in agents:
        return agents[name]
    hint = suggestion(name, agents)
    known = ", ".join(shown(known, 60) for known in list(agents)[:_MOST_SHOWN]) or "none"
    raise ToolFailure("UnknownAgent", f"there is no agent {shown(ascii(name), 80)}{hint} Available: {known}")
