"""What the plan may say about redaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.errors import PlanError
from amplifier.events import ALL_EVENTS, CATALOGUE, OUR_EVENTS

from .._tool_base import one_of, read_config, texts

MODULE = "hooks-redaction"

RULES = ("secrets", "pii-basic", "pii")  # the last is another word for the second
_SHORTEST_LITERAL = 4

# A change to these events changes what the agent does: the prompt the model gets, a tool's input, a tool's result.
WORKING_EVENTS = frozenset(event.name for event in CATALOGUE.values() if "modify" in event.verdict)
# One piece of text per token: a secret is spread over several of them, so that looking at each finds nothing.
_PIECES = frozenset(name for name in ALL_EVENTS if name.endswith(":delta"))

STRUCTURAL = frozenset(
    {
        *("session_id", "parent_id", "timestamp", "parent", "lvl", "level", "tool_name", "provider", "orchestrator"),
        *("status", "type", "ts", "seq", "turn_id", "span_id", "parent_span_id", "model", "usage.cost_usd"),
        *("tool_call_id", "parallel_group_id", "module_id", "hook_name", "event", "redaction"),
    }
)
"""Fields by which events are told apart; never changed, as in the published module."""


@attrs.frozen(kw_only=True)
class RedactionOptions:
    """What is taken out, and where.

    Attributes:
        rules: ``"secrets"`` and ``"pii-basic"``.
        allowlist: Paths of the payload that are left as they are, with all below: ``usage.cost_usd``, ``items[0].id``.
        events: The events that are looked at.
        keys: More names whose values are secrets.
        literals: Texts to take out wherever they stand.
        prefixes: Beginnings of tokens: what follows is taken out with them.
        priority: Where the handlers stand: before those that show or store.
    """

    rules: tuple[str, ...] = ("secrets", "pii-basic")
    allowlist: frozenset[str] = STRUCTURAL
    events: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    priority: int = 10


def _priority(value: Any) -> str | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return None if is_number else f"expected a whole number, got {value!r}"


def _long_texts(value: Any) -> str | None:
    if problem := texts()(value):
        return problem
    short = [text for text in value if len(text) < _SHORTEST_LITERAL]
    return f"expected texts of at least {_SHORTEST_LITERAL} characters, got {short[0]!r}" if short else None


def _no_patterns(_value: Any) -> str | None:
    return (
        "regular expressions are not accepted: one that backtracks would stop every session of the process; "
        "use literals, prefixes or keys"
    )


def _paths(value: Any) -> str | None:
    if problem := texts()(value):
        return problem
    wrong = [path for path in value if not path_steps(path)]
    return f"expected paths such as usage.cost_usd or items[0].id, got {wrong[0]!r}" if wrong else None


_CHECKS = {
    "rules": one_of(RULES, several=True),
    "allowlist": _paths,
    "enabled_events": texts(),
    "skip_events": texts(),
    "additional_events": texts(),
    "keys": texts(),
    "literals": _long_texts,
    "prefixes": _long_texts,
    "patterns": _no_patterns,
    "priority": _priority,
}


def read_redaction_options(config: Mapping[str, Any] | None) -> RedactionOptions:
    """Read the module's config.

    Raises:
        PlanError: A key or value is wrong; all of them at once.
    """
    given = read_config(MODULE, config, _CHECKS)
    skipped = frozenset(given.get("skip_events", WORKING_EVENTS | _PIECES))
    enabled = given.get("enabled_events", (*ALL_EVENTS, *OUR_EVENTS))
    names = dict.fromkeys([*enabled, *given.get("additional_events", ())])
    rules = tuple(dict.fromkeys("pii-basic" if rule == "pii" else rule for rule in given.get("rules", RULES)))
    if not rules and not any(given.get(key) for key in ("literals", "prefixes")):
        raise PlanError([("$.rules", f"expected at least one of {RULES}")], subject=f"invalid config of {MODULE}")
    return RedactionOptions(
        rules=rules,
        allowlist=STRUCTURAL | frozenset(given.get("allowlist", ())),
        events=tuple(name for name in names if name not in skipped),
        keys=tuple(given.get("keys", ())),
        literals=tuple(given.get("literals", ())),
        prefixes=tuple(given.get("prefixes", ())),
        **{key: given[key] for key in ("priority",) if key in given},
    )


_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,9})\]")


def path_steps(path: str) -> tuple[str | int, ...]:
    """The steps of a path, or none if it is not one: ``a.b[0]`` is ``("a", "b", 0)``."""
    found = list(_STEP.finditer(path))
    if "".join(one[0] for one in found) != path:
        return ()
    return tuple(one[1] if one[1] is not None else int(one[2]) for one in found)
