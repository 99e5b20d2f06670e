"""The plan of a running turn, kept until the turn ends, so that a turn that was cut off is not resumed with another one unnoticed.

It is a file ``turn-plan.json`` in the folder of the session: the modules, each with a hash of its entry in the plan without secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplifier._json import redact_secrets
from amplifier.cli.core.private_file import replace_file

__all__ = ["plan_changes", "read_turn_plan", "remove_turn_plan", "write_turn_plan"]

_FILE = "turn-plan.json"


def write_turn_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Note the plan of the turn that begins.

    Raises:
        OSError: The system refuses.
    """
    replace_file(folder / _FILE, json.dumps(_modules_of(plan), indent=2).encode())


def read_turn_plan(folder: Path) -> dict[str, str] | None:
    """The plan of the turn that was cut off; None if it is not known."""
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return {str(name): str(value) for name, value in known.items()}
    return None


def remove_turn_plan(folder: Path) -> None:
    """The turn has ended."""
    with suppress(OSError):
        (folder / _FILE).unlink(missing_ok=True)


def plan_changes(before: Mapping[str, str] | None, plan: Mapping[str, Any]) -> list[str]:
    """What is different in ``plan``, one line each; nothing if the plan before is not known."""
    if before is None:
        return []
    now = _modules_of(plan)
    return [
        *(f"{name} is not in the plan any more" for name in before if name not in now),
        *(f"{name} is new in the plan" for name in now if name not in before),
        *(f"{name} is configured differently" for name in before if name in now and now[name] != before[name]),
    ]


def _modules_of(plan: Mapping[str, Any]) -> dict[str, str]:
    """Every module of a plan with a hash of its entry; a module that is there twice gets a number."""
    found: dict[str, str] = {}
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
        text = json.dumps(redact_secrets(dict(spec)), sort_keys=True, default=str)
        found[name] = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return found
