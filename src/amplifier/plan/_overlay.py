"""One plan laid over another, and variables put into a plan; both give a copy and leave what they were given alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .._json import Frame, copy_json, format_path, join_paths, rebuild
from .._reading import show
from ..errors import ModelError, PlanError, Problem


def merge_plans(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one plan over another: mappings merge key by key at every depth, for all else (lists too) the overlay wins.

    Neither argument is changed, and the result shares no dict or list with them; other objects are shared.

    Raises:
        PlanError: An argument is no mapping, or holds itself, or is nested deeper than 1000 levels.
    """
    for name, plan in (("base", base), ("overlay", overlay)):
        if not isinstance(plan, Mapping):
            raise PlanError(
                [("$", f"expected the {name} to be a mapping, got {show(plan)}")], subject="cannot merge plans"
            )
    merged: dict[str, Any] = _copy(dict(base), "$")
    pending: list[tuple[dict[str, Any], Mapping[str, Any], str]] = [(merged, overlay, "$")]
    for target, above, path in pending:
        for key, value in above.items():
            below, where = target.get(key), format_path([key], path)
            if type(below) is dict and issubclass(type(value), dict):
                pending.append((below, value, where))
            else:
                target[key] = _copy(value, where)
    return merged


def _copy(value: Any, path: str) -> Any:
    try:
        return copy_json(value)
    except ModelError as error:
        problems = [(join_paths(path, inner), text) for inner, text in error.problems]
        raise PlanError(problems, subject="cannot merge plans") from None


_VARIABLE: Final = re.compile(
    r"(?P<escaped>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*+)?\}|(?P<malformed>\$\{)"
)


def expand_variables(plan: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Copy a plan with ``${NAME}`` and ``${NAME:-default}`` replaced in every string value, at any depth.

    A separate step on purpose: the kernel never looks into the environment by itself. As in a shell, the default also
    serves a variable that is empty. ``$${`` is an escaped ``${``; what was put in is not expanded again.

    Raises:
        PlanError: A variable is not set and has no default, or a reference is malformed; all of them are listed.
    """
    if not isinstance(plan, Mapping):
        raise PlanError([("$", f"expected a mapping, got {show(plan)}")])
    problems: list[Problem] = []

    def expand(value: Any, frames: Sequence[Frame]) -> Any:
        if not issubclass(type(value), str) or "${" not in value:
            return value

        def replace(found: re.Match[str]) -> str:
            if found["escaped"]:
                return "${"
            name, default = found["name"], found["default"]
            text = env.get(name) if name else None
            if default is not None:
                return text or default[2:]
            if text is None:
                rule = "write ${NAME} or ${NAME:-default}, or $${ for a plain ${"
                shown = f"variable {name!r} is not set; set it or write ${{{name}:-default}}" if name else rule
                problems.append((format_path((frame.key() for frame in frames), "$"), shown))
            return text or ""

        return _VARIABLE.sub(replace, value)

    expanded: dict[str, Any] = {}
    try:
        expanded = rebuild(dict(plan), expand, subject="")
    except ModelError as error:
        problems += [(join_paths("$", inner), text) for inner, text in error.problems]
    if problems:
        raise PlanError(problems, subject="cannot expand the plan's variables")
    return expanded
