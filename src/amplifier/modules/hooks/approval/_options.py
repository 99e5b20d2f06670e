"""The configuration of hooks-approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import attrs

from amplifier.models import ApprovalDefault

from ..._shared.configuration import (
    Kind,
    choice,
    flag,
    list_each,
    mapping,
    object_with,
    option,
    optional,
    read_options,
    record,
    seconds,
    whole_number,
)
from ._rules import ACTIONS, Action, Rule, is_action

MODULE = "hooks-approval"

FREE_TOOLS = frozenset({"read_file", "list_directory", "glob", "grep", "recall", "todo"})
"""Built-in tools that change nothing outside the session; every other tool needs approval unless the plan allows it."""

DEFAULT_RULES = (
    Rule(action="allow", tools=("bash",), command=("pwd",), reason="it only prints the working directory"),
    Rule(action="allow", tools=("bash",), command=("ls", "*"), reason="it only lists names"),
    Rule(action="allow", tools=("bash",), command=("echo", "*"), reason="it only prints its arguments"),
)
"""As in the published module, but for simple commands only."""


def _requires_approval(value: Any) -> bool | None:
    """The member of the published module's form, ``{"require_approval": true}``; None for every other value."""
    if isinstance(value, Mapping) and value.keys() == {"require_approval"} and flag.accepts(value["require_approval"]):
        return bool(value["require_approval"])
    return None


_TOOL_ACTION = Kind(
    "'allow', 'ask', 'deny' or an object with require_approval",
    lambda value: is_action(value) or _requires_approval(value) is not None,
    lambda value: ACTIONS[value] if isinstance(value, str) else "ask" if _requires_approval(value) else "allow",
)
_TOOLS = Kind(
    "an object of tool names",
    mapping.accepts,
    lambda value: object_with(dict.fromkeys(value, _TOOL_ACTION)).read(value),
)
_DEFAULT_TIMEOUT = 300.0
# The published module's own default is null.
_TIMEOUT = attrs.evolve(
    optional(seconds, null="for the default"), convert=lambda value: _DEFAULT_TIMEOUT if value is None else value
)
_DEFAULT_ACTION = attrs.evolve(
    choice("allow", "continue", "deny"), convert=lambda value: "deny" if value == "deny" else "allow"
)
_RULE = record(Rule, "an object with at least action")


@attrs.frozen(kw_only=True)
class ApprovalOptions:
    """How the hook decides on calls.

    Attributes:
        rules: The plan's rules; the strictest one that applies to a call decides. None if the plan has none.
        use_default_rules: Whether the default rules decide where no rule of the plan applies; by default if the plan has no
            rules.
        tools: Actions by tool name, for calls that no rule of the plan applies to.
        unknown_tools: The action for all other tools but `FREE_TOOLS`.
        timeout: Seconds to wait for an answer.
        on_timeout: The decision if there is no answer.
        remember: Offer to allow the same call for the rest of the session.
        policy_driven_only: Decide only on calls that a policy module or a rule names.
        priority: Of the handler: after those that change a tool's input.
        max_question_chars: The longest question; a call with more input than a person can look through is denied.
    """

    rules: tuple[Rule, ...] | None = option(list_each("rules", _RULE), default=None, restricts=True)
    use_default_rules: bool | None = option(flag, default=None, restricts=True)
    tools: Mapping[str, Action] = option(_TOOLS, default=attrs.Factory(dict), restricts=True)
    unknown_tools: Action = option(choice(*get_args(Action)), default="ask", restricts=True)
    timeout: float = option(_TIMEOUT, default=_DEFAULT_TIMEOUT, aliases=("default_timeout",))
    on_timeout: ApprovalDefault = option(_DEFAULT_ACTION, key="default_action", default="deny", restricts=True)
    remember: bool = option(flag, default=True)
    policy_driven_only: bool = option(flag, default=False, restricts=True)
    priority: int = option(whole_number(), default=80)
    max_question_chars: int = option(whole_number(64), default=100_000)

    @property
    def default_rules(self) -> tuple[Rule, ...]:
        """The rules that decide where no rule of the plan applies."""
        is_used = self.rules is None if self.use_default_rules is None else self.use_default_rules
        return DEFAULT_RULES if is_used else ()


def read_approval_options(config: Mapping[str, Any] | None) -> ApprovalOptions:
    """Read the module's configuration.

    Raises:
        PlanError: The configuration is wrong.
    """
    return read_options(ApprovalOptions, MODULE, config)
