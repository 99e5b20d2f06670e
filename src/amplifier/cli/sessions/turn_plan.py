"""The plan of a running turn, kept until the turn ends, so that a turn that was cut off is not resumed with another one unnoticed.

It is a file ``turn-plan.json`` in the folder of the session: the modules, each with a hash of its entry in the plan without secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplifier.cli.core.private_file import replace_file
from amplifier.plan._changes import module_hashes

__all__ = ["read_turn_plan", "remove_turn_plan", "write_turn_plan"]

_FILE = "turn-plan.json"


def write_turn_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Note the plan of the turn that begins.

    Raises:
        OSError: The system refuses.
    """
    replace_file(folder / _FILE, json.dumps(module_hashes(plan), indent=2).encode())


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
