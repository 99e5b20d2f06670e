"""Whether the modules a plan names are there with what they need, from files alone: no module is imported.

Above: ``plan check``. Below: the loader's list of modules. A plan that has other problems is looked through as well, as far as it has
the form of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amplifier.plan import is_module_id

from ._catalogue import installed_ids
from ._composition import needs
from ._nearest import nearest_module

__all__ = ["missing_modules"]

_ADVICE = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"


def missing_modules(plan: Any) -> list[tuple[str, str]]:
    """Every module that nothing provides, or whose extra is not installed, as a path in the plan and the problem.

    One that has a ``source`` is not judged.
    """
    named = list(_named(plan))
    known = installed_ids() if named else []
    return [(path, problem) for path, module_id in named if (problem := _problem(module_id, known)) is not None]


def _problem(module_id: str, known: list[str]) -> str | None:
    if module_id not in known:
        installed = _is_importable(module_id)
        return None if installed else f"no module {module_id!r} is installed; {_advice(module_id, known)}"
    lacking = needs(module_id)
    if lacking is None:
        return None
    package, extra = lacking
    return f"module {module_id!r} needs {package}, which is not installed; install it with: pip install 'amplifier[{extra}]'"


def _advice(module_id: str, known: list[str]) -> str:
    near = nearest_module(module_id, known)
    return _ADVICE if near is None else f"did you mean {near!r}?"


def _named(plan: Any) -> Iterator[tuple[str, str]]:
    """Path and id of each module without a source."""
    sections = plan if isinstance(plan, Mapping) else {}
    session = sections.get("session")
    if isinstance(session, Mapping):
        for role in ("orchestrator", "context"):
            entry = session.get(role)
            if isinstance(entry, str) and session.get(f"{role}_source") is not None:
                continue
            yield from _module_of(entry, f"$.session.{role}")
    for section in ("providers", "tools", "hooks"):
        entries = sections.get(section)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            yield from _module_of(entry, f"$.{section}[{index}]")


def _module_of(entry: Any, path: str) -> Iterator[tuple[str, str]]:
    spec = {"module": entry} if isinstance(entry, str) else entry
    if isinstance(spec, Mapping) and spec.get("source") is None and is_module_id(spec.get("module")):
        yield path, spec["module"]


def _is_importable(module_id: str) -> bool:
    """Whether the package a loader tries last is there: on the path of Python, or bare in a search path."""
    package = f"amplifier_module_{module_id.replace('-', '_')}"
    search_paths = filter(None, os.environ.get("AMPLIFIER_MODULES", "").split(os.pathsep))
    if any((Path(folder) / package / "__init__.py").is_file() for folder in search_paths):
        return True
    try:
        return find_spec(package) is not None
    except ValueError:  # somebody has put a module without a spec there: it is there
        return True
