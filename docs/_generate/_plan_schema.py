"""The JSON Schema of mount plans, made from what the records of `amplifier.plan` declare; the package contains it as a file."""

from __future__ import annotations

import json
from typing import Any

from amplifier._internal.reading import schemas_of
from amplifier.plan._reading import SPEC_KEYS
from amplifier.plan.spec import ModuleSpec, SessionSettings, module_id, source


def schema_text() -> str:
    """``mount-plan.schema.json``."""
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False) + "\n"


def plan_schema() -> dict[str, Any]:
    """What the file contains, from the records."""
    lists = {
        "providers": "Who answers: the language models. Loops use the first one unless configured otherwise.",
        "tools": "What the model may call.",
        "hooks": "What observes, changes or stops the work of the others.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier mount plan",
        "description": "Which modules make an agent, and how they are configured.",
        "type": "object",
        "required": ["session"],
        "properties": {
            "session": _session(),
            **{role: _beside(role) for role in ("orchestrator", "context")},
            **{
                section: {
                    "type": ["array", "null"],
                    "description": text,
                    "items": _module("One module.", section),
                }
                for section, text in lists.items()
            },
            "agents": {
                "description": "Agents by name, for modules that delegate, such as tool-task; not looked at here."
            },
            "$schema": {
                "description": "Where an editor finds this schema; the kernel does not look at it."
            },
        },
        "allOf": [_config_beside(role) for role in ("orchestrator", "context")],
    }


def _session() -> dict[str, Any]:
    roles = {
        "orchestrator": _module("The loop: it runs the turns.", "session"),
        "context": _module("The memory: it keeps the conversation.", "session"),
    }
    sources = {
        f"{role}_source": {
            "description": f"Where the {role} comes from, if {role} is an id; as `source` of a module.",
            **source.schema,
        }
        for role in roles
    }
    return {
        "type": "object",
        "description": "The two modules every agent has, and the settings of the session.",
        "required": list(roles),
        "properties": {**roles, **sources, **schemas_of(SessionSettings)},
    }


def _module(description: str, section: str) -> dict[str, Any]:
    """One module: its id, or a mapping with one."""
    properties = {
        name: schema
        for name, schema in schemas_of(ModuleSpec).items()
        if name in SPEC_KEYS[section]
    }
    spec = {"type": "object", "required": ["module"], "properties": properties}
    return {"description": description, "anyOf": [dict(module_id.schema), spec]}


def _beside(role: str) -> dict[str, Any]:
    return {
        "description": f"The config of the {role}, if session.{role} is an id.",
        "properties": {"config": {"description": f"Handed to the mount() of the {role}."}},
    }


def _config_beside(role: str) -> dict[str, Any]:
    """Beside an id the section has to be a mapping with one; beside a mapping it is ignored, whatever it is."""
    mapping = {"type": ["object", "null"]}
    is_id = {"properties": {"session": {"properties": {role: {"type": "string"}}}}}
    return {
        "if": is_id,
        "then": {"properties": {role: {**mapping, "properties": {"config": mapping}}}},
    }
