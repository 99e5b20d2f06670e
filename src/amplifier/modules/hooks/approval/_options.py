"""The configuration of hooks-approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import attrs

from amplifier.errors import PlanError, Problem
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
    text,
    whole_number,
)
from ._rules import Action, Call, Rule

MODULE = "hooks-approval"

# The names of the published module besides ours.
_ACTIONS: Mapping[str, Action] = {
    "allow": "allow",
    "auto_approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "auto_deny": "deny",
}

FREE_TOOLS = frozenset({"read_file", "list_directory", "glob", "grep", "recall", "todo"})
"""Built-in tools that change nothing outside the session; every other tool needs approval unless the plan allows it."""

DEFAULT_RULES = (
    Rule(action="allow", tools=("bash",), command=("pwd",), reason="it only prints the working directory"),
    Rule(action="allow", tools=("bash",), command=("ls", "*"), reason="it only lists names"),
    Rule(action="allow", tools=("bash",), command=("echo", "*"), reason="it only prints its arguments"),
)
"""As in the published module, but for simple commands only."""

_DEFAULT_TIMEOUT = 300.0


def _is_action(value: Any) -> bool:
    return isinstance(value, str) and value in _ACTIONS


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) and name for name in value)


def _read_command(value: Any) -> tuple[str, ...]:
    words = tuple(_words(value))
    if {"*", "?"} & set(words[0]):
        hint = f"write {words[0].rstrip('*')!r} and, for any arguments, a last word '*'"
        raise PlanError([("$", f"expected the program by its name, got {words[0]!r}; {hint}")])
    return words


_NAMES = Kind(
    "a name, or a list of names ('*' for all)",
    lambda value: (isinstance(value, str) and bool(value)) or _are_names(value),
    lambda value: (value,) if isinstance(value, str) else tuple(value),
)
_COMMAND = optional(
    Kind("the words of a command such as 'git status'", lambda value: _are_names(_words(value)), _read_command)
)
_EXAMPLE = Kind(
    "a command, or an input of the tool",
    lambda value: text.accepts(value) or mapping.accepts(value),
    lambda value: {"command": value} if isinstance(value, str) else value,
)
_EXAMPLES = list_each("commands, or inputs of the tool", _EXAMPLE)


@attrs.frozen(kw_only=True)
class _WrittenRule:
    """A rule as a plan has it; see `Rule`."""

    action: Action = option(Kind("'allow', 'ask' or 'deny'", _is_action, _ACTIONS.__getitem__))
    tools: tuple[str, ...] | None = option(_NAMES, key="tool", default=None)
    modules: tuple[str, ...] | None = option(_NAMES, key="module", default=None)
    command: tuple[str, ...] | None = option(_COMMAND, default=None, aliases=("pattern",))
    path: str | None = option(optional(text), default=None)
    host: str | None = option(optional(text), default=None)
    sandboxed: bool | None = option(flag, default=None)
    given: Mapping[str, Any] = option(mapping, key="input", default=attrs.Factory(dict))
    read_only: bool | None = option(optional(flag), default=None)
    reason: str | None = option(optional(text), default=None)
    description: str | None = option(optional(text), default=None)
    match: tuple[Mapping[str, Any], ...] = option(_EXAMPLES, default=())
    not_match: tuple[Mapping[str, Any], ...] = option(_EXAMPLES, default=())


_RULE_OBJECT = record(_WrittenRule)


def _read_rule(value: Any) -> Rule:
    written: _WrittenRule = _RULE_OBJECT.read(value)
    if written.tools is None and not written.command:
        raise PlanError([("$.tool", f"is missing; expected {_NAMES.expected}")])
    members = attrs.asdict(written, recurse=False)
    description, match, not_match = (members.pop(name) for name in ("description", "match", "not_match"))
    members |= {"tools": written.tools or ("bash",), "reason": written.reason or description}
    rule = Rule(**members)
    _check_examples(rule, {"match": match, "not_match": not_match})
    return rule


def _check_examples(rule: Rule, given: Mapping[str, tuple[Mapping[str, Any], ...]]) -> None:
    """Check that the rule applies to its examples: a rule that means something else than its author is refused.

    Raises:
        PlanError: It does not apply to one of ``match``, or applies to one of ``not_match``.
    """
    problems: list[Problem] = []
    for key, wanted in (("match", True), ("not_match", False)):
        for number, example in enumerate(given[key]):
            # What a tool states about itself and where it runs are no part of an example.
            call = Call(
                rule.tools[0].replace("*", "x"),
                example,
                is_read_only=bool(rule.read_only),
                is_sandboxed=bool(rule.sandboxed),
            )
            alone = attrs.evolve(rule, modules=("application",))
            if alone.applies(call) is wanted:
                continue
            said = example.get("command") or example
            doubt = None if call.command is None or rule.action != "allow" else call.command.doubt
            because = f": {doubt}, and no rule allows that" if wanted and doubt else ""
            verb = "does not apply" if wanted else "applies"
            problems.append(
                (f"$.{key}[{number}]", f"the rule {verb} to {said!r}{because}; change the rule or the example")
            )
    if problems:
        raise PlanError(problems)


_RULE = Kind("an object with at least action", _RULE_OBJECT.accepts, _read_rule)


# ── other values ─────────────────────────────────────────────────────────────────────────────────


def _requires_approval(value: Any) -> bool | None:
    """The member of the published module's form, ``{"require_approval": true}``; None for every other value."""
    if isinstance(value, Mapping) and value.keys() == {"require_approval"} and flag.accepts(value["require_approval"]):
        return bool(value["require_approval"])
    return None


_TOOL_ACTION = Kind(
    "'allow', 'ask', 'deny' or an object with require_approval",
    lambda value: _is_action(value) or _requires_approval(value) is not None,
    lambda value: _ACTIONS[value] if isinstance(value, str) else "ask" if _requires_approval(value) else "allow",
)
_TOOLS = Kind(
    "an object of tool names",
    mapping.accepts,
    lambda value: object_with(dict.fromkeys(value, _TOOL_ACTION)).read(value),
)
_TIMEOUT = attrs.evolve(
    optional(seconds, null="for the default"), convert=lambda value: _DEFAULT_TIMEOUT if value is None else value
)
_DEFAULT_ACTION = attrs.evolve(
    choice("allow", "continue", "deny"), convert=lambda value: "deny" if value == "deny" else "allow"
)
_AUDIT = Kind(
    "an object with enabled: true or false",
    lambda value: (
        isinstance(value, Mapping) and value.keys() <= {"enabled"} and flag.accepts(value.get("enabled", True))
    ),
    lambda value: value.get("enabled", True),
)


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
        announce: Emit ``approval:granted`` and ``approval:denied`` for what rules decide.
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
    announce: bool = option(_AUDIT, key="audit", default=True)
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
