"""Plans as dicts: the modules in them, one laid over another, variables put into them, their JSON.

A plan may have functions, instances and mount functions in place of ids. These belong to the process that made them, so such a plan has no JSON;
elsewhere their ids take their place. What changes a plan gives a copy and leaves what it was given alone.
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


def is_thing(given: object) -> bool:
    """Whether an entry of a plan is no id and no mapping but a module itself: something to call, or an instance of a contract."""
    if isinstance(given, _DATA):
        return False
    return callable(given) or any(
        hasattr(given, name) for name in ("mount", "execute", "complete", "add_message")
    )


def id_of_thing(thing: object, section: str, path: str) -> str:
    """An id for a module that is in the plan itself, for reports and for what it owns."""
    prefix = {"providers": "provider", "tools": "tool", "hooks": "hooks"}.get(section)
    if prefix is None:
        prefix = "loop" if path.endswith("orchestrator") else "context"
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    word = name if isinstance(name, str) else type(thing).__name__
    slug = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "unnamed"
    return f"{prefix}-{slug.removeprefix(f'{prefix}-')}"[:64]


def places_of(plan: Mapping[str, Any]) -> Iterator[tuple[Any, Any, str, str]]:
    """Each module of a plan: what holds it, under which key or index, its section and its path; what is no plan holds none."""
    if isinstance(session := plan.get("session"), Mapping):
        for role in ("orchestrator", "context"):
            if role in session:
                yield session, role, "session", f"$.session.{role}"
    for section in ("providers", "tools", "hooks"):
        if isinstance(entries := plan.get(section), list):
            for index in range(len(entries)):
                yield entries, index, section, f"$.{section}[{index}]"


def find_things(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Path and description of each module that is in a plan itself."""
    found: list[tuple[str, str]] = []
    for holder, key, _, path in places_of(plan):
        is_spec = isinstance(holder[key], Mapping)
        thing = holder[key].get("module") if is_spec else holder[key]
        if is_thing(thing):
            name = getattr(thing, "__name__", None)
            what = (
                f"an instance of {type(thing).__name__}" if name is None else f"the function {name}"
            )
            found.append((f"{path}.module" if is_spec else path, what))
    return found


def replace_things(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a plan and of its sections with the id of each module that is in the plan itself in its place."""
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


def module_hashes(plan: Mapping[str, Any]) -> dict[str, str]:
    """Every module of a plan with a hash of its entry without secrets; a module that is there twice gets a number.

    What is different between two plans is read from them: no plan has to be kept, and no secret of one.
    """
    found: dict[str, str] = {}
    for holder, key, _, _ in places_of(replace_things(plan)):
        spec = {"module": holder[key]} if isinstance(holder[key], str) else holder[key]
        if not isinstance(spec, Mapping):
            continue
        name = module = str(spec.get("module"))
        number = 1
        while name in found:
            number += 1
            name = f"{module} ({number})"
        text = json.dumps(redact_secrets(dict(spec)), sort_keys=True, default=_shown)
        found[name] = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return found


def plan_changes(before: Mapping[str, str] | None, plan: Mapping[str, Any]) -> list[str]:
    """What is different in ``plan`` from the one with these `module_hashes`, one line each; nothing if those are not known."""
    if before is None:
        return []
    now = module_hashes(plan)
    return [
        *(f"{name} is not in the plan any more" for name in before if name not in now),
        *(f"{name} is new in the plan" for name in now if name not in before),
        *(
            f"{name} is configured differently"
            for name in before
            if name in now and now[name] != before[name]
        ),
    ]


def _shown(value: object) -> str:
    """The text of an object, the same in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def plan_json(plan: Mapping[str, Any]) -> str:
    """A plan as JSON text, for a file or for another process.

    Raises:
        PlanError: It has functions or objects, which belong to this process; every one is named, with what to write instead.
    """
    if not isinstance(plan, Mapping):
        raise PlanError(
            [("$", f"expected a plan, which is a dict, got {plan!r:.80}")],
            subject="the plan cannot be written as JSON",
        )
    instead = "which only this process has: write the id of an installed module, or make the plan where it is used"
    problems = [
        (path, f"expected the id of a module, got {what}, {instead}")
        for path, what in find_things(plan)
    ]
    try:
        if not problems:
            return to_json(dict(plan))
    except ModelError as error:
        problems = [(join_paths("$", path), text) for path, text in error.problems]
    raise PlanError(problems, subject="the plan cannot be written as JSON")


# ── overlays and variables ────────────────────────────────────────────────────────────────────────


def merge_plans(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one plan over another: mappings merge key by key at every depth, for all else (lists too) the overlay wins.

    Neither argument is changed, and the result shares no dict or list with them; other objects are shared.

    Raises:
        PlanError: An argument is no mapping, or holds itself, or is nested deeper than 1000 levels.
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
                shown = (
                    f"variable {name!r} is not set; set it or write ${{{name}:-default}}"
                    if name
                    else rule
                )
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
