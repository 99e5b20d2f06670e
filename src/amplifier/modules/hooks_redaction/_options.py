"""The configuration of hooks-redaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.errors import PlanError
from amplifier.events import ALL_EVENTS, CATALOGUE, OUR_EVENTS

from .._shared.configuration import Kind, choices, list_of, option, read_options, texts, whole_number

MODULE = "hooks-redaction"

_SHORTEST_LITERAL = 4

# A change to these events changes what the agent does: the model's prompt, a tool's input, a tool's result.
WORKING_EVENTS = frozenset(event.name for event in CATALOGUE.values() if "modify" in event.verdict)
# One piece of text per token: a secret is spread over several of them, so that no single piece contains it.
_DELTAS = frozenset(name for name in ALL_EVENTS if name.endswith(":delta"))

STRUCTURAL = frozenset(
    {
        *("session_id", "parent_id", "timestamp", "parent", "lvl", "level", "tool_name", "provider", "orchestrator"),
        *("status", "type", "ts", "seq", "turn_id", "span_id", "parent_span_id", "model", "usage.cost_usd"),
        *("tool_call_id", "parallel_group_id", "module_id", "hook_name", "event", "redaction"),
    }
)
"""Fields that identify events; never changed, as in the published module."""

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,9})\]")


def path_steps(path: str) -> tuple[str | int, ...]:
    """The steps of a path, or none if it is not one: ``a.b[0]`` is ``("a", "b", 0)``."""
    found = list(_STEP.finditer(path))
    if "".join(one[0] for one in found) != path:
        return ()
    return tuple(one[1] if one[1] is not None else int(one[2]) for one in found)


_RULES = attrs.evolve(
    choices("secrets", "pii-basic", "pii"),
    convert=lambda rules: tuple(dict.fromkeys("pii-basic" if rule == "pii" else rule for rule in rules)),
)
_PATHS = attrs.evolve(
    list_of(
        "paths such as usage.cost_usd or items[0].id", lambda item: isinstance(item, str) and bool(path_steps(item))
    ),
    convert=STRUCTURAL.union,
)
_LITERALS = list_of(
    f"texts of at least {_SHORTEST_LITERAL} characters",
    lambda item: isinstance(item, str) and bool(item.strip()) and len(item) >= _SHORTEST_LITERAL,
)
_NO_PATTERNS = Kind(
    "no regular expressions, because one that backtracks would block every session of the process (use literals, "
    "prefixes or keys)",
    lambda value: False,
)


@attrs.frozen(kw_only=True)
class RedactionOptions:
    """What the hook redacts, and where.

    Attributes:
        rules: ``"secrets"`` and ``"pii-basic"``, which is also called ``"pii"``.
        allowlist: Paths of the payload that stay as they are, with everything below: ``usage.cost_usd``, ``items[0].id``.
        enabled_events: The events to redact, without those to skip.
        skip_events: The events to skip.
        additional_events: More events to redact.
        keys: More names whose values are secrets.
        literals: Texts to redact wherever they occur.
        prefixes: Beginnings of tokens: the rest of the token is redacted with them.
        patterns: Not accepted.
        priority: Of the handlers: before those that show or store.
    """

    rules: tuple[str, ...] = option(_RULES, default=("secrets", "pii-basic"), restricts=True)
    allowlist: frozenset[str] = option(_PATHS, default=STRUCTURAL, restricts=True)
    enabled_events: tuple[str, ...] = option(texts(), default=(*ALL_EVENTS, *OUR_EVENTS), restricts=True)
    skip_events: tuple[str, ...] = option(texts(), default=(*WORKING_EVENTS, *_DELTAS), restricts=True)
    additional_events: tuple[str, ...] = option(texts(), default=(), restricts=True)
    keys: tuple[str, ...] = option(texts(), default=(), restricts=True)
    literals: tuple[str, ...] = option(_LITERALS, default=(), restricts=True)
    prefixes: tuple[str, ...] = option(_LITERALS, default=(), restricts=True)
    patterns: None = option(_NO_PATTERNS, default=None, restricts=True)
    priority: int = option(whole_number(), default=10)

    def __attrs_post_init__(self) -> None:
        if not (self.rules or self.literals or self.prefixes):
            raise PlanError(
                [("$.rules", f"expected {_RULES.expected}, got an empty list without literals or prefixes")]
            )

    @property
    def events(self) -> list[str]:
        """The events to redact, each once."""
        names = dict.fromkeys([*self.enabled_events, *self.additional_events])
        return [name for name in names if name not in self.skip_events]


def read_redaction_options(config: Mapping[str, Any] | None) -> RedactionOptions:
    """Read the module's configuration.

    Raises:
        PlanError: The configuration is wrong.
    """
    return read_options(RedactionOptions, MODULE, config)
