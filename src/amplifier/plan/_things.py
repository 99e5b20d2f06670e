"""Entries of a plan that are no ids but the modules themselves: functions, instances and mount functions.

They belong to the process that made them, so such a plan has no JSON; elsewhere their ids take their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ModelError, PlanError
from ..models import to_json


def is_thing(given: object) -> bool:
    """Whether an entry of a plan is no id and no mapping but a module itself: something to call, or an instance of a contract."""
    if given is None or isinstance(given, str | bytes | int | float | list | tuple | set | frozenset | Mapping):
        return False
    return callable(given) or any(hasattr(given, name) for name in ("mount", "execute", "complete", "add_message"))


def id_of_thing(thing: object, section: str, path: str) -> str:
    """An id for a module that is in the plan itself, for reports and for what it owns."""
    prefix = {"providers": "provider", "tools": "tool", "hooks": "hooks"}.get(section)
    if prefix is None:
        prefix = "loop" if path.endswith("orchestrator") else "context"
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    word = name if isinstance(name, str) else type(thing).__name__
    slug = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "unnamed"
    return f"{prefix}-{slug.removeprefix(f'{prefix}-')}"[:64]


def replace_things(plan: Mapping[str, Any], replace: Callable[[Any, str, str], Any] = id_of_thing) -> dict[str, Any]:
    """A copy of the sections of a plan with something else in place of each module that is in the plan itself.

    Args:
        plan: It is not changed; what is no module is shared with it.
        replace: Gets the module, the section and the path, and returns what to put there; by default its id.
    """

    def replaced(entry: Any, section: str, path: str) -> Any:
        if is_thing(entry):
            return replace(entry, section, path)
        if isinstance(entry, Mapping) and is_thing(entry.get("module")):
            return {**entry, "module": replace(entry["module"], section, f"{path}.module")}
        return entry

    changed = dict(plan)
    if isinstance(session := plan.get("session"), Mapping):
        roles = ("orchestrator", "context")
        changed["session"] = {
            key: replaced(value, "session", f"$.session.{key}") if key in roles else value
            for key, value in session.items()
        }
    for section in ("providers", "tools", "hooks"):
        if isinstance(entries := plan.get(section), list):
            changed[section] = [
                replaced(entry, section, f"$.{section}[{index}]") for index, entry in enumerate(entries)
            ]
    return changed


def find_things(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Path and description of each module that is in a plan itself."""
    found: list[tuple[str, str]] = []

    def note(thing: Any, section: str, path: str) -> Any:
        name = getattr(thing, "__name__", None)
        what = f"an instance of {type(thing).__name__}" if name is None else f"the function {name}"
        found.append((path, what))
        return thing

    replace_things(plan, note)
    return found


def plan_json(plan: Mapping[str, Any]) -> str:
    """A plan as JSON text, for a file or for another process.

    Raises:
        PlanError: It has functions or objects, which belong to this process; every one is named, with what to write instead.
    """
    if not isinstance(plan, Mapping):
        raise PlanError(
            [("$", f"expected a plan, which is a dict, got {plan!r:.80}")], subject="the plan cannot be written as JSON"
        )
    instead = "which only this process has: write the id of an installed module, or make the plan where it is used"
    problems = [(path, f"expected the id of a module, got {what}, {instead}") for path, what in find_things(plan)]
    try:
        if not problems:
            return to_json(dict(plan))
    except ModelError as error:
        problems = [(f"$.{path}", text) for path, text in error.problems]
    raise PlanError(problems, subject="the plan cannot be written as JSON")
