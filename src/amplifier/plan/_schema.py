"""The plan's shape as JSON Schema, with the words that editors show and the reference page repeats.

``mount-plan.schema.json`` beside this file is what `plan_schema` gives, for tools that do not run Python.
"""

from __future__ import annotations

from typing import Any, Final

from ._budget import AMOUNT_PATTERN, PRICE_KEYS
from ._names import MODULE_ID
from ._spec import DEADLINE_NAMES, DEFAULT_DEADLINES, LONGEST_DEADLINE

_DEADLINES: Final = {
    "mount": "Mounting one module.",
    "ready": "on_session_ready of one module.",
    "hook": "One handler of an event; long, because an approval may wait inside one.",
    "contribution": "One contributor of a channel.",
    "collection": "All contributors of a channel together.",
    "cleanup": "One cleanup.",
    "teardown": "The whole closing of a session.",
    "turn": "One turn.",
}
_SOURCE: Final = (
    'Where the module comes from. `"builtin"` pins the module of this package, `{"distribution": NAME}` that of an installed distribution, '
    "where several have the id. Anything else is read by the source resolver; without one it is a path."
)
# Of this one character, white space to a schema and none to Python, a name may consist.
_NOT_BLANK: Final = r"[\S\uFEFF]"
_PIN: Final = {
    "if": {"type": "object", "required": ["distribution"], "maxProperties": 1},
    "then": {"properties": {"distribution": {"type": "string", "pattern": _NOT_BLANK}}},
}


def plan_schema() -> dict[str, Any]:
    """The shape of a plan as JSON Schema (2020-12), for editors and documentation.

    Whatever `check_plan` finds no problem in keeps it. It covers what JSON Schema can express; the uniqueness of provider
    instances, for one, only `check_plan` knows.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier mount plan",
        "description": "Which modules make an agent, and how they are configured.",
        "type": "object",
        "required": ["session"],
        "properties": {
            "session": _session(),
            "orchestrator": _beside("orchestrator"),
            "context": _beside("context"),
            "providers": _modules(
                "Who answers: the language models. Loops use the first one unless configured otherwise.",
                instance_id={
                    "type": ["string", "null"],
                    "pattern": _NOT_BLANK,
                    "description": "The name to mount it under; needed when one module is mounted several times.",
                },
            ),
            "tools": _modules("What the model may call."),
            "hooks": _modules(
                "What observes, changes or stops the work of the others.",
                on_failure={
                    "enum": ["continue", "deny", None],
                    "default": "continue",
                    "description": (
                        "What a handler that fails or is late means: it is skipped, or it denies (a gate). A gate that "
                        "returns None denies, too."
                    ),
                },
            ),
            "agents": {
                "description": "Agents by name, for modules that delegate, such as tool-task; not looked at here."
            },
            "$schema": {"description": "Where an editor finds this schema; the kernel does not look at it."},
        },
        "allOf": [_config_beside(role) for role in ("orchestrator", "context")],
    }


def _session() -> dict[str, Any]:
    roles = {
        "orchestrator": _module("The loop: it runs the turns."),
        "context": _module("The memory: it keeps the conversation."),
    }
    sources = {
        f"{role}_source": {
            "description": f"Where the {role} comes from, if {role} is an id; as `source` of a module.",
            **_PIN,
        }
        for role in roles
    }
    return {
        "type": "object",
        "description": "The two modules every agent has, and the settings of the session.",
        "required": list(roles),
        "properties": {
            **roles,
            **sources,
            "strict": _flag("Any module that cannot be used is fatal, not only loop, context and gates."),
            "deadlines": _deadlines(),
            "injection_budget_per_turn": _limit("Tokens that hooks may inject in one turn before a warning."),
            "injection_size_limit": _limit("Characters of one injection before it is refused."),
            "budget": _budget(),
            "metadata": {"description": "The application's own data, sent along with session events."},
            "raw": _flag("Session events carry the plan, secrets taken out."),
        },
    }


def _deadlines() -> dict[str, Any]:
    seconds = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": LONGEST_DEADLINE}
    return {
        "type": ["object", "null"],
        "description": "Seconds the kernel waits for code it did not write; null is no limit.",
        "properties": {
            name: {**seconds, "default": getattr(DEFAULT_DEADLINES, name), "description": _DEADLINES[name]}
            for name in DEADLINE_NAMES
        },
        "additionalProperties": False,
    }


def _budget() -> dict[str, Any]:
    amount = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": AMOUNT_PATTERN}]
    price = {
        "type": "object",
        "description": "What a model costs, per million tokens.",
        "required": list(PRICE_KEYS),
        "properties": {key: {"anyOf": amount} for key in PRICE_KEYS},
        "additionalProperties": False,
    }
    share = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1, "default": 0.8}
    return {
        "type": ["object", "null"],
        "description": "What the session and all its children together may use; null is no limit.",
        "properties": {
            "tokens": _limit("Input and output tokens of all model calls."),
            "cost": {
                "anyOf": [*amount, {"type": "null"}],
                "default": None,
                "description": "The price of all model calls, as a number or as text. null: no limit.",
            },
            "currency": {
                "type": ["string", "null"],
                "pattern": "^[A-Z]{3}$",
                "default": "USD",
                "description": "Of the cost. Providers report US dollars; for another currency, give prices.",
            },
            "model_calls": _limit("Calls of models; every attempt counts."),
            "tool_calls": _limit("Calls of tools."),
            "seconds": {
                "type": ["number", "null"],
                "exclusiveMinimum": 0,
                "maximum": LONGEST_DEADLINE,
                "default": None,
                "description": "Time in which turns run. null: no limit.",
            },
            "warn_at": {**share, "description": "The share of a limit at which budget:warning is emitted."},
            "unknown_price": {
                "enum": ["refuse", "allow", None],
                "default": "refuse",
                "description": "Whether a model without a known price may be called where cost is limited.",
            },
            "prices": {
                "type": ["object", "null"],
                "description": "Prices by model name, instead of those that providers know; `*` is for all other models.",
                "additionalProperties": price,
            },
        },
        "additionalProperties": False,
    }


def _module(description: str, **extra: Any) -> dict[str, Any]:
    """One module: its id, or a mapping with one."""
    module_id = {"type": "string", "pattern": f"^{MODULE_ID.pattern}$"}
    properties = {
        "module": {**module_id, "description": "The module's id."},
        "source": {"description": _SOURCE, **_PIN},
        "config": {
            "type": ["object", "null"],
            "description": "Handed to the module's mount(); its keys are defined by the module.",
        },
        **extra,
    }
    spec = {"type": "object", "required": ["module"], "properties": properties}
    return {"description": description, "anyOf": [module_id, spec]}


def _modules(description: str, **extra: Any) -> dict[str, Any]:
    return {"type": ["array", "null"], "description": description, "items": _module("One module.", **extra)}


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


def _flag(description: str) -> dict[str, Any]:
    return {"type": ["boolean", "null"], "default": False, "description": description}


def _limit(description: str) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": 0, "default": None, "description": f"{description} null: no limit."}
