"""The modules of a plan, wherever they are in it, above all those that are no ids but functions, instances and mount functions.

These belong to the process that made them, so such a plan has no JSON; elsewhere their ids take their place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .._json import join_paths, redact_secrets
from ..errors import ModelError, PlanError
from ..models import to_json

_DATA = (dict, str, bytes, int, float, list, tuple, set, frozenset, Mapping, type(None))


def is_thing(given: object) -> bool:
    """Whether an entry of a plan is no id and no mapping but a module itself: something to call, or an instance of a contract."""
    if isinstance(given, _DATA):
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
            what = f"an instance of {type(thing).__name__}" if name is None else f"the function {name}"
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
        *(f"{name} is configured differently" for name in before if name in now and now[name] != before[name]),
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
            [("$", f"expected a plan, which is a dict, got {plan!r:.80}")], subject="the plan cannot be written as JSON"
        )
    instead = "which only this process has: write the id of an installed module, or make the plan where it is used"
    problems = [(path, f"expected the id of a module, got {what}, {instead}") for path, what in find_things(plan)]
    try:
        if not problems:
            return to_json(dict(plan))
    except ModelError as error:
        problems = [(join_paths("$", path), text) for path, text in error.problems]
    raise PlanError(problems, subject="the plan cannot be written as JSON")
