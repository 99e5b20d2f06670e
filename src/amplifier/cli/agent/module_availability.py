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

from amplifier._spelling import did_you_mean
from amplifier.cli.core.installed_modules import installed_ids
from amplifier.cli.core.nearest_module import nearest_module
from amplifier.errors import ModuleLoadError
from amplifier.loading import choose, entry_points, find_pinned, read_pin
from amplifier.plan import is_module_id

from .default_plan import missing_package

__all__ = ["missing_modules"]

_ADVICE = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"


def missing_modules(plan: Any) -> list[tuple[str, str]]:
    """Every module that nothing provides, or whose extra is not installed, as a path in the plan and the problem.

    One that has a ``source`` is not judged, unless the source pins an installed distribution or the built-in module.
    """
    named = list(_named(plan))
    if not named:
        return []
    known = installed_ids()
    return [
        (path, problem)
        for path, module_id, source in named
        if (problem := _problem(module_id, source, known)) is not None
    ]


def _problem(module_id: str, source: Any, known: list[str]) -> str | None:
    pin = read_pin(source)
    if source is not None and pin is None:
        return None
    claims = entry_points().get(module_id, ())
    try:
        used = choose(module_id, claims) if pin is None else find_pinned(module_id, claims, pin)
    except ModuleLoadError as error:
        return str(error)
    if used is not None and used.is_built_in and (lacking := missing_package(module_id)) is not None:
        package, extra = lacking
        install = f"pip install 'amplifier[{extra}]'"
        return f"module {module_id!r} needs {package}, which is not installed; install it with: {install}"
    if used is not None or module_id in known or _is_importable(module_id):
        return None
    return f"no module {module_id!r} is installed; {_advice(module_id, known)}"


def _advice(module_id: str, known: list[str]) -> str:
    near = nearest_module(module_id, known)
    return _ADVICE if near is None else did_you_mean(near)


def _named(plan: Any) -> Iterator[tuple[str, str, Any]]:
    """Path, id and source of each module."""
    sections = plan if isinstance(plan, Mapping) else {}
    session = sections.get("session")
    if isinstance(session, Mapping):
        for role in ("orchestrator", "context"):
            entry = session.get(role)
            if isinstance(entry, str):
                entry = {"module": entry, "source": session.get(f"{role}_source")}
            yield from _module_of(entry, f"$.session.{role}")
    for section in ("providers", "tools", "hooks"):
        entries = sections.get(section)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            yield from _module_of(entry, f"$.{section}[{index}]")


def _module_of(entry: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    spec = {"module": entry} if isinstance(entry, str) else entry
    if isinstance(spec, Mapping) and is_module_id(spec.get("module")):
        yield path, spec["module"], spec.get("source")


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
