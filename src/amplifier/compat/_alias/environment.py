"""The alias in other processes: those that this one starts, and with ``python -m amplifier.compat enable`` all of an environment.

A child process looks up imports by its own rules, so only what it inherits can make the alias importable there: a directory in front of
PYTHONPATH, in which ``amplifier_core`` installs the alias. That is lost when the process is given a PYTHONPATH of its own, as test suites
do. Every interpreter of the environment reads the ``.pth`` files in site-packages when it starts. Ours puts one directory in front of
sys.path and imports nothing: a process pays for the alias when it imports ``amplifier_core``, and not before.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

PLACE: Final = str(Path(__file__).parent / "path")
FILE: Final = "amplifier_core_alias.pth"
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


def enable() -> int:
    """Write the file; returns the exit code."""
    file = _file()
    try:
        file.write_text(_line(), encoding="utf-8")
    except OSError as error:
        return _refuse(file, "written", error)
    print(f"enabled: {file}")
    return 0


def disable() -> int:
    """Remove the file; returns the exit code."""
    file = _file()
    try:
        file.unlink()
    except FileNotFoundError:
        print(f"not enabled: there is no {file}")
        return 0
    except OSError as error:
        return _refuse(file, "removed", error)
    print(f"disabled: {file} is removed")
    return 0


def status() -> int:
    """Report whether the file exists; the exit code is 0 if the alias is enabled."""
    file = _file()
    try:
        is_enabled = file.read_text(encoding="utf-8") == _line()  # not by another installation of amplifier
    except OSError:
        is_enabled = False
    print(f"enabled: {file}" if is_enabled else f"not enabled: `python -m amplifier.compat enable` writes {file}")
    return 0 if is_enabled else 1


def _file() -> Path:
    return Path(sysconfig.get_path("purelib")) / FILE


def _line() -> str:
    """One line, because that is what such a file executes; nothing happens once the package is gone."""
    return (
        f"import os, sys; place = {PLACE!r}; "
        "os.path.isdir(place) and place not in sys.path and sys.path.insert(0, place)\n"
    )


def _refuse(file: Path, what: str, error: OSError) -> int:
    print(
        f"{file} cannot be {what}: {error.strerror or error}; use a virtual environment of your own, "
        f"or put {PLACE} in front of PYTHONPATH",
        file=sys.stderr,
    )
    return 1
