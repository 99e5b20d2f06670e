"""What all validators share: checks, results, and the import of a module by its real name."""

from __future__ import annotations

import _imp
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from amplifier.loading._importing import import_lock

__all__ = ["ValidationCheck", "ValidationResult", "check_on_session_ready", "import_module_from_path"]


@dataclass
class ValidationCheck:
    """One question and its answer."""

    name: str
    passed: bool
    message: str
    severity: Literal["error", "warning", "info"]


class Checks:
    """A list of checks and what it amounts to."""

    checks: list[ValidationCheck]

    @property
    def passed(self) -> bool:
        """Whether no check of the rank of an error failed."""
        return not self.errors

    @property
    def errors(self) -> list[ValidationCheck]:
        """Failed checks of the rank of an error."""
        return self._failed("error")

    @property
    def warnings(self) -> list[ValidationCheck]:
        """Failed checks of the rank of a warning."""
        return self._failed("warning")

    def _failed(self, severity: str) -> list[ValidationCheck]:
        return [check for check in self.checks if check.severity == severity and not check.passed]

    def add(self, check: ValidationCheck) -> None:
        """Add a check."""
        self.checks.append(check)

    def note(self, name: str, passed: bool, message: str, *, failing: Literal["error", "warning"] = "error") -> bool:
        """Add a check that is an info when it passes; returns whether it did."""
        self.add(ValidationCheck(name, passed, message, "info" if passed else failing))
        return passed

    def summary(self) -> str:
        """All of it in one line."""
        good = sum(check.passed for check in self.checks)
        return (
            f"{'PASSED' if self.passed else 'FAILED'}: {good}/{len(self.checks)} checks passed "
            f"({len(self.errors)} errors, {len(self.warnings)} warnings)"
        )


@dataclass
class ValidationResult(Checks):
    """All checks of one module."""

    module_type: str
    module_path: str
    checks: list[ValidationCheck] = field(default_factory=list)


def import_module_from_path(module_path: str | Path) -> ModuleType:
    """Import a package or a file under the name it has at run time.

    Raises:
        ImportError: Another source already holds that name, or part of it.
    """
    path = Path(module_path)
    source = path / "__init__.py" if path.is_dir() else path
    name = path.name if path.is_dir() else path.stem
    with import_lock, _all_imports_wait():
        _refuse_foreign_children(name, source)
        present = sys.modules.get(name)
        if present is not None:
            if _is_from(present, source):
                return present
            raise ImportError(
                f"Refusing to import '{name}' from {source}: it is already loaded from "
                f"{getattr(present, '__file__', None)}"
            )
        module = _import_from(name, str(path.parent))
    if not _is_from(module, source):
        raise ImportError(
            f"Refusing to validate '{name}' from {source}: Python imported {getattr(module, '__file__', None)}"
        )
    return module


@contextmanager
def _all_imports_wait() -> Iterator[None]:
    """Keep other imports from using a path entry that exists for one import only."""
    _imp.acquire_lock()
    try:
        yield
    finally:
        _imp.release_lock()


def _import_from(name: str, directory: str) -> ModuleType:
    """Import with a directory in front of sys.path, which is afterwards what it was."""
    before = list(sys.path)
    sys.path[:] = [directory, *(entry for entry in before if entry != directory)]
    front = list(sys.path)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        # A module may have changed the path as it was imported; that is its own business and stays.
        added = [entry for entry in sys.path if entry not in front]
        removed = {entry for entry in front if entry not in sys.path}
        sys.path[:] = [*added, *(entry for entry in before if entry not in removed)]


def _refuse_foreign_children(name: str, source: Path) -> None:
    package = source.parent.resolve()
    for cached, module in list(sys.modules.items()):
        if cached.startswith(f"{name}."):
            file = getattr(module, "__file__", None)
            if file is None or not Path(file).resolve().is_relative_to(package):
                raise ImportError(
                    f"Refusing to import '{name}' from {source}: cached submodule '{cached}' is from {file}"
                )


def _is_from(module: Any, source: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == source.resolve()


def check_on_session_ready(module: Any) -> ValidationCheck | None:
    """A failed check if a module's ``on_session_ready`` is not ``async def`` with a coordinator; otherwise None."""
    function = getattr(module, "on_session_ready", None)
    if function is None:
        return None
    problem = None
    if not inspect.iscoroutinefunction(function):
        problem = "on_session_ready() must be async: found sync function; write async def on_session_ready(coordinator)"
    elif not _takes_a_coordinator(function):
        problem = "on_session_ready() must accept a coordinator argument: async def on_session_ready(coordinator)"
    return None if problem is None else ValidationCheck("on_session_ready_async", False, problem, "error")


def _takes_a_coordinator(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True  # not visible from outside; the call shows it
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
