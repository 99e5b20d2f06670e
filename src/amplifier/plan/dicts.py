"""Plans as dicts: the modules in them, merging, variables and JSON.

Functions, instances and mount functions may take the place of module ids. They exist in one process
only, so a plan that has them cannot be written as JSON. Functions that change a plan return a copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .._internal.json import Frame, copy_json, format_path, join_paths, rebuild, redact_secrets
from .._internal.reading import show
from ..errors import ModelError, PlanError, Problem
from ..models import to_json

_DATA = (dict, str, bytes, int, float, list, tuple, set, frozenset, Mapping, type(None))


def is_thing(entry: object) -> bool:
    """Return whether an entry of a plan is a module itself, not its id or a mapping.

    A module is a callable or an instance of a contract.
    """
    if isinstance(entry, _DATA):
        return False
    methods = ("mount", "execute", "complete", "add_message")
    return callable(entry) or any(hasattr(entry, name) for name in methods)


def id_of_thing(thing: object, section: str, path: str) -> str:
    """Return an id for a module that is in the plan itself."""
    prefix = {"providers": "provider", "tools": "tool", "hooks": "hooks"}.get(section)
    if prefix is None:
        prefix = "loop" if path.endswith("orchestrator") else "context"
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    word = name if isinstance(name, str) else type(thing).__name__
    slug = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "unnamed"
    return f"{prefix}-{slug.removeprefix(f'{prefix}-')}"[:64]


def places_of(plan: Mapping[str, object]) -> Iterator[tuple[Any, Any, str, str]]:
    """Yield the place of every module: its container, key or index, section and path.

    Malformed sections are skipped.
    """
    if isinstance(session := plan.get("session"), Mapping):
        for role in ("orchestrator", "context"):
            if role in session:
                yield session, role, "session", f"$.session.{role}"
    for section in ("providers", "tools", "hooks"):
        if isinstance(entries := plan.get(section), list):
            for index in range(len(entries)):
                yield entries, index, section, f"$.{section}[{index}]"


def find_things(plan: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return path and description of every module that is in the plan itself."""
    things: list[tuple[str, str]] = []
    for holder, key, _, path in places_of(plan):
        is_spec = isinstance(holder[key], Mapping)
        thing = holder[key].get("module") if is_spec else holder[key]
        if is_thing(thing):
            name = getattr(thing, "__name__", None)
            if name is None:
                description = f"an instance of {type(thing).__name__}"
            else:
                description = f"the function {name}"
            things.append((f"{path}.module" if is_spec else path, description))
    return things


def replace_things(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a plan in which ids replace the modules that are in it themselves."""
    changed = dict(plan)
    for section, value in plan.items():
        if isinstance(value, Mapping | list):
            changed[section] = value.copy() if isinstance(value, list) else dict(value)
    for holder, key, section, path in places_of(changed):
        entry = holder[key]
        if is_thing(entry):
            holder[key] = id_of_thing(entry, section, path)
        elif isinstance(entry, Mapping) and is_thing(entry.get("module")):
            holder[key] = {**entry, "module": id_of_thing(entry["module"], section, path)}
    return changed


def module_hashes(plan: Mapping[str, object]) -> dict[str, str]:
    """Return a hash of the entry of every module, without secrets.

    `plan_changes` compares plans by their hashes, so a plan and its secrets need not be stored. If
    the plan has a module twice, a number is added to its id.
    """
    hashes: dict[str, str] = {}
    for holder, key, _, _ in places_of(replace_things(plan)):
        spec = {"module": holder[key]} if isinstance(holder[key], str) else holder[key]
        if not isinstance(spec, Mapping):
            continue
        name = module = str(spec.get("module"))
        number = 1
        while name in hashes:
            number += 1
            name = f"{module} ({number})"
        text = json.dumps(redact_secrets(dict(spec)), sort_keys=True, default=_stable_text)
        hashes[name] = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return hashes


def plan_changes(before: Mapping[str, str] | None, plan: Mapping[str, object]) -> list[str]:
    """Return one line for each module that differs from an earlier plan.

    Args:
        before: The `module_hashes` of the earlier plan, or None if they are unknown.
        plan: The plan to compare.
    """
    if before is None:
        return []
    now = module_hashes(plan)
    changed = [name for name in before if name in now and now[name] != before[name]]
    return [
        *(f"{name} is not in the plan any more" for name in before if name not in now),
        *(f"{name} is new in the plan" for name in now if name not in before),
        *(f"{name} is configured differently" for name in changed),
    ]


def _stable_text(value: object) -> str:
    """Return the text of an object without its address, which differs between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def plan_json(plan: Mapping[str, object]) -> str:
    """Return a plan as JSON text, for a file or for another process.

    Raises:
        PlanError: The plan has functions or objects, which exist in this process only. The error
            lists them all.
    """
    if not isinstance(plan, Mapping):
        raise PlanError(
            [("$", f"expected a plan, which is a dict, got {plan!r:.80}")],
            subject="the plan cannot be written as JSON",
        )
    hint = (
        "which only this process has: write the id of an installed module, "
        "or build the plan where it is used"
    )
    problems = [
        (path, f"expected the id of a module, got {description}, {hint}")
        for path, description in find_things(plan)
    ]
    try:
        if not problems:
            return to_json(dict(plan))
    except ModelError as error:
        problems = [(join_paths("$", path), text) for path, text in error.problems]
    raise PlanError(problems, subject="the plan cannot be written as JSON")


# ── overlays and variables ────────────────────────────────────────────────────────────────────────


def merge_plans(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Merge an overlay into a copy of a plan.

    Mappings merge key by key at every depth. For all other values, including lists, the overlay
    takes precedence. The result shares no dict or list with the arguments, but shares other
    objects.

    Raises:
        PlanError: An argument is not a mapping, contains itself, or is nested deeper than 1000
            levels.
    """
    for name, plan in (("base", base), ("overlay", overlay)):
        if not isinstance(plan, Mapping):
            raise PlanError(
                [("$", f"expected the {name} to be a mapping, got {show(plan)}")],
                subject="cannot merge plans",
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


def _copy(value: object, path: str) -> Any:
    try:
        return copy_json(value)
    except ModelError as error:
        problems = [(join_paths(path, inner), text) for inner, text in error.problems]
        raise PlanError(problems, subject="cannot merge plans") from None


_VARIABLE: Final = re.compile(
    r"(?P<escaped>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*+)?\}"
    r"|(?P<malformed>\$\{)"
)


def expand_variables(plan: Mapping[str, object], env: Mapping[str, str]) -> dict[str, Any]:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in every string value of a copy of a plan.

    This is a separate step, because the kernel never reads the environment. As in a shell, the
    default also replaces an empty variable. ``$${`` is an escaped ``${``. Inserted text is not
    expanded again.

    Raises:
        PlanError: A variable is not set and has no default, or a reference is malformed. The error
            lists them all.
    """
    if not isinstance(plan, Mapping):
        raise PlanError([("$", f"expected a mapping, got {show(plan)}")])
    problems: list[Problem] = []

    def expand(value: Any, frames: Sequence[Frame]) -> Any:
        if not issubclass(type(value), str) or "${" not in value:
            return value

        def replace(match: re.Match[str]) -> str:
            if match["escaped"]:
                return "${"
            name, default = match["name"], match["default"]
            text = env.get(name) if name else None
            if default is not None:
                return text or default[2:]
            if text is None:
                problem = "write ${NAME} or ${NAME:-default}, or $${ for a plain ${"
                if name:
                    problem = f"variable {name!r} is not set; set it or write ${{{name}:-default}}"
                problems.append((format_path((frame.key() for frame in frames), "$"), problem))
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
