"""The alias in child processes: a directory in front of PYTHONPATH, in which ``amplifier_core`` installs the alias.

Suites start interpreters of their own, and applications start workers. A child process looks up imports by its own rules, so
only the environment that it inherits can make the alias importable there. ``python -m amplifier.compat`` and the pytest plugin
set it; `install` in a program does not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PLACE: Final = str(Path(__file__).parent / "path")
_VARIABLE: Final = "PYTHONPATH"


def export_alias() -> None:
    """Make the alias importable in processes that this one starts; repeating it does nothing."""
    entries = _entries()
    if PLACE not in entries:
        os.environ[_VARIABLE] = os.pathsep.join([PLACE, *entries])


def withdraw_alias() -> None:
    """Undo `export_alias`."""
    entries = _entries()
    if PLACE in entries:
        entries.remove(PLACE)
        os.environ[_VARIABLE] = os.pathsep.join(entries)
        if not entries:
            del os.environ[_VARIABLE]


def _entries() -> list[str]:
    return [entry for entry in os.environ.get(_VARIABLE, "").split(os.pathsep) if entry]
