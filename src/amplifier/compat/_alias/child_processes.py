"""Processes that a program with the alias starts: they find it under the published name as well.

Suites start interpreters of their own, and applications start workers. What such a process imports is looked up by its own
rules, so the only way to it is the environment it inherits: a directory in front of PYTHONPATH, in which the published name
stands for the alias. Above: ``python -m amplifier.compat`` and the pytest plugin. `install` in a program does not do this.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PLACE: Final = str(Path(__file__).parent / "path")
_VARIABLE: Final = "PYTHONPATH"


def let_in() -> None:
    """From now on, processes that this one starts have the alias; twice is once."""
    entries = _entries()
    if PLACE not in entries:
        os.environ[_VARIABLE] = os.pathsep.join([PLACE, *entries])


def keep_out() -> None:
    """Take that back."""
    entries = _entries()
    if PLACE in entries:
        entries.remove(PLACE)
        os.environ[_VARIABLE] = os.pathsep.join(entries)
        if not entries:
            del os.environ[_VARIABLE]


def _entries() -> list[str]:
    return [entry for entry in os.environ.get(_VARIABLE, "").split(os.pathsep) if entry]
