"""What is different between two plans, told from hashes of the modules' entries: no plan has to be kept, and no secret of one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from amplifier._json import redact_secrets

from ._things import replace_things


def module_hashes(plan: Mapping[str, Any]) -> dict[str, str]:
    """Every module of a plan with a hash of its entry without secrets; a module that is there twice gets a number."""
    found: dict[str, str] = {}
    plan = replace_things(plan)
    session = plan.get("session")
    entries = [session.get(name) for name in ("orchestrator", "context")] if isinstance(session, Mapping) else []
    for section in ("providers", "tools", "hooks"):
        listed = plan.get(section)
        entries += listed if isinstance(listed, list) else []
    for entry in entries:
        spec = {"module": entry} if isinstance(entry, str) else entry
        if not isinstance(spec, Mapping):
            continue
        module = str(spec.get("module"))
        name, number = module, 1
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
