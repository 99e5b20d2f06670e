"""The plan's shape as JSON Schema."""

from __future__ import annotations

from typing import Any

from ._names import MODULE_ID
from ._spec import DEADLINE_NAMES, DEFAULT_DEADLINES, LONGEST_DEADLINE


def plan_schema() -> dict[str, Any]:
    """The shape of a plan as JSON Schema (2020-12), for editors and documentation.

    It says what JSON Schema can say; the uniqueness of provider instances, for one, only `check_plan` knows.
    """
    module_id = {"type": "string", "pattern": f"^{MODULE_ID.pattern}$"}
    flag, limit = {"type": ["boolean", "null"]}, {"type": ["integer", "null"], "minimum": 0}
    seconds = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": LONGEST_DEADLINE}
    deadlines = {name: {**seconds, "default": getattr(DEFAULT_DEADLINES, name)} for name in DEADLINE_NAMES}

    def mapping(**properties: Any) -> dict[str, Any]:
        return {"type": ["object", "null"], "properties": properties}

    def module(**extra: Any) -> dict[str, Any]:
        spec = {"module": module_id, "config": mapping(), **extra}
        return {"anyOf": [module_id, {"type": "object", "required": ["module"], "properties": spec}]}

    def modules(**extra: Any) -> dict[str, Any]:
        return {"type": ["array", "null"], "items": module(**extra)}

    session = {
        "type": "object",
        "required": ["orchestrator", "context"],
        "properties": {
            "orchestrator": module(),
            "context": module(),
            "strict": flag,
            "raw": flag,
            "injection_budget_per_turn": limit,
            "injection_size_limit": limit,
            "deadlines": {**mapping(**deadlines), "additionalProperties": False},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier mount plan",
        "type": "object",
        "required": ["session"],
        "properties": {
            "session": session,
            "orchestrator": mapping(config=mapping()),
            "context": mapping(config=mapping()),
            "providers": modules(instance_id={"type": ["string", "null"], "pattern": r"\S"}),
            "tools": modules(),
            "hooks": modules(on_failure={"enum": ["continue", "deny", None]}),
        },
    }
