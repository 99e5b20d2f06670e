"""What the plan may say about approvals, read once at mount; every problem is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import attrs

from amplifier._spelling import did_you_mean, nearest
from amplifier.errors import PlanError, Problem
from amplifier.models import ApprovalDefault

from .._tool_base import count, flag, one_of, read_config, seconds
from ._rules import Action, Rule

MODULE = "hooks-approval"

# The words of the published module beside ours.
_ACTIONS: Mapping[str, Action] = {
    "allow": "allow",
    "auto_approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "auto_deny": "deny",
}
_RULE_KEYS = ("tool", "command", "pattern", "path", "host", "input", "action", "reason", "description")

FREE_TOOLS = frozenset({"read_file", "list_directory", "glob", "grep", "todo"})
"""Built-in tools that change nothing outside the session; every other tool is asked about unless the plan says otherwise."""

DEFAULT_RULES = (
    Rule(action="allow", tools=("bash",), command=("pwd",), reason="it only prints the working directory"),
    Rule(action="allow", tools=("bash",), command=("ls", "*"), reason="it only lists names"),
    Rule(action="allow", tools=("bash",), command=("echo", "*"), reason="it only prints its arguments"),
)
"""As in the published module, but of simple commands only; asked when no rule of the plan is about a call."""


@attrs.frozen(kw_only=True)
class ApprovalOptions:
    """How calls are judged.

    Attributes:
        rules: The plan's; the strictest of those about a call decides.
        default_rules: Asked when none of them is about a call.
        tools: What to do with calls of a tool that no rule of the plan is about, by name.
        unknown_tools: What to do with all other tools but `FREE_TOOLS`.
        timeout: Seconds to wait for an answer.
        on_timeout: What no answer means.
        remember: Offer to allow the same call for the rest of the session.
        policy_driven_only: Judge only what a policy module or a rule names.
        announce: Emit ``approval:granted`` and ``approval:denied`` for what rules decide.
        priority: Where the handler stands: after those that change a tool's input.
        max_value_chars: How much of a value the question shows.
    """

    rules: tuple[Rule, ...] = ()
    default_rules: tuple[Rule, ...] = DEFAULT_RULES
    tools: Mapping[str, Action] = attrs.field(factory=dict)
    unknown_tools: Action = "ask"
    timeout: float = 300.0
    on_timeout: ApprovalDefault = "deny"
    remember: bool = True
    policy_driven_only: bool = False
    announce: bool = True
    priority: int = 80
    max_value_chars: int = 2000


def _anything(_value: Any) -> str | None:
    return None  # looked at closely below, with a path for each problem


def _priority(value: Any) -> str | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return None if is_number else f"expected a whole number, got {value!r}"


_CHECKS = {
    "rules": _anything,
    "tools": _anything,
    "use_default_rules": flag,
    "unknown_tools": one_of(get_args(Action)),
    "timeout": seconds,
    "default_timeout": lambda value: None if value is None else seconds(value),
    "default_action": one_of(("allow", "continue", "deny")),
    "remember": flag,
    "policy_driven_only": flag,
    "audit": _anything,
    "priority": _priority,
    "max_value_chars": count(64),
}


def read_approval_options(config: Mapping[str, Any] | None) -> ApprovalOptions:
    """Read the module's config.

    Raises:
        PlanError: A key or value is wrong; all of them at once.
    """
    problems: list[Problem] = []
    try:
        given = read_config(MODULE, config, _CHECKS)
    except PlanError as error:
        problems += error.problems
        given = dict(config or {})
    options: dict[str, Any] = {}
    for key in ("unknown_tools", "remember", "policy_driven_only", "priority", "max_value_chars"):
        if key in given:
            options[key] = given[key]
    if "timeout" in given and "default_timeout" in given:
        problems.append(("$.default_timeout", "says the same as $.timeout; expected one of the two"))
    timeout = given.get("timeout", given.get("default_timeout"))
    if timeout is not None:
        options["timeout"] = timeout
    if given.get("default_action", "deny") != "deny":
        options["on_timeout"] = "allow"
    if given.get("use_default_rules", "rules" not in given) is False:
        options["default_rules"] = ()
    options["rules"] = _rules(given.get("rules", ()), problems)
    options["tools"] = _tools(given.get("tools", {}), problems)
    options["announce"] = _audit(given.get("audit", {}), problems)
    if problems:
        raise PlanError(problems, subject=f"invalid config of {MODULE}")
    return ApprovalOptions(**options)


def _audit(given: Any, problems: list[Problem]) -> bool:
    if isinstance(given, Mapping) and given.keys() <= {"enabled"} and isinstance(given.get("enabled", True), bool):
        return bool(given.get("enabled", True))
    problems.append(("$.audit", f"expected an object with enabled: true or false, got {given!r}"))
    return True


def _tools(given: Any, problems: list[Problem]) -> dict[str, Action]:
    if not isinstance(given, Mapping):
        problems.append(("$.tools", f"expected an object of tool names, got {given!r}"))
        return {}
    tools: dict[str, Action] = {}
    for name, wanted in given.items():
        action = wanted
        if isinstance(wanted, Mapping) and wanted.keys() == {"require_approval"}:  # as the published module has it
            action = {True: "ask", False: "allow"}.get(wanted["require_approval"])
        if isinstance(action, str) and action in _ACTIONS:
            tools[str(name)] = _ACTIONS[action]
        else:
            expected = "'allow', 'ask', 'deny' or an object with require_approval"
            problems.append((f"$.tools.{name}", f"expected {expected}, got {wanted!r}"))
    return tools


def _rules(given: Any, problems: list[Problem]) -> tuple[Rule, ...]:
    if not isinstance(given, list | tuple):
        problems.append(("$.rules", f"expected a list of rules, got {given!r}"))
        return ()
    return tuple(rule for at, one in enumerate(given) if (rule := _rule(one, f"$.rules[{at}]", problems)) is not None)


def _rule(given: Any, path: str, problems: list[Problem]) -> Rule | None:
    if not isinstance(given, Mapping):
        problems.append((path, f"expected an object with at least action, got {given!r}"))
        return None
    before = len(problems)
    for key in given:
        if key not in _RULE_KEYS:
            near = nearest(key, _RULE_KEYS)
            hint = did_you_mean(near) if near else f"expected one of {', '.join(_RULE_KEYS)}"
            problems.append((f"{path}.{key}", f"unknown key; {hint}"))
    action = given.get("action")
    if not isinstance(action, str) or action not in _ACTIONS:
        problems.append((f"{path}.action", f"expected 'allow', 'ask' or 'deny', got {action!r}"))
    texts = {key: _text(given, key, path, problems) for key in ("path", "host", "reason", "description")}
    command = _command(given, path, problems)
    wanted = given.get("input", {})
    if not isinstance(wanted, Mapping):
        problems.append((f"{path}.input", f"expected an object of values, got {wanted!r}"))
    tools = _tool_patterns(given, path, command, problems)
    if len(problems) > before:
        return None
    return Rule(
        action=_ACTIONS[str(action)],
        tools=tools,
        command=command,
        path=texts["path"],
        host=texts["host"],
        given=dict(wanted),
        reason=texts["reason"] or texts["description"],
    )


def _text(given: Mapping[str, Any], key: str, path: str, problems: list[Problem]) -> str | None:
    value = given.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    problems.append((f"{path}.{key}", f"expected text, got {value!r}"))
    return None


def _tool_patterns(
    given: Mapping[str, Any], path: str, command: tuple[str, ...] | None, problems: list[Problem]
) -> tuple[str, ...]:
    value = given.get("tool", "bash" if command else None)
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    problems.append((f"{path}.tool", f"expected the name of a tool, or a list of names ('*' for all), got {value!r}"))
    return ()


def _command(given: Mapping[str, Any], path: str, problems: list[Problem]) -> tuple[str, ...] | None:
    if "command" in given and "pattern" in given:
        problems.append((f"{path}.pattern", "says the same as command; expected one of the two"))
    key = "command" if "command" in given else "pattern"
    value = given.get(key)
    if value is None:
        return None
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) and word for word in words):
        problems.append((f"{path}.{key}", f"expected the words of a command such as 'git status', got {value!r}"))
        return None
    if {"*", "?"} & set(words[0]):
        hint = f"write {words[0].rstrip('*')!r} and, for any arguments, a last word '*'"
        problems.append((f"{path}.{key}", f"expected the program by its name, got {words[0]!r}; {hint}"))
    return tuple(words)
