"""Importing third-party packages so that a bad one does not harm others.

Here are the rules about names (a package may not shadow another one
or the standard library) and about failures (the cause is kept, sys.modules is as it was before).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import anyio

from amplifier.errors import ModuleConflictError, ModuleLoadError

from . import _sys_path
from ._alias_advice import advise_on_alias

# One import of a module at a time, so that undoing a failed one cannot tear down a neighbour's.
import_lock: Final = threading.RLock()

# Packages imported from a directory given as a source, by name. A session that named no directory must not get
# them merely because another session in the process did.
_from_directories: Final[dict[str, str]] = {}

MODULE_PREFIX: Final = "amplifier_module_"


@contextmanager
def foreign_code(module_id: str, doing: str) -> Iterator[None]:
    """Turn whatever foreign code raises at import into a `ModuleLoadError` that keeps it as its cause.

    SystemExit too: a module that calls ``sys.exit()`` failed, the process did not. KeyboardInterrupt and cancellation
    are not the module's and pass.
    """
    try:
        yield
    except BaseException as exc:  # foreign module code may raise anything at all
        if isinstance(exc, KeyboardInterrupt) or _is_cancellation(exc):
            raise
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        advice = f"; it needs {missing!r}, which cannot be found" if missing else ""
        raise ModuleLoadError(
            advise_on_alias(f"module {module_id!r}: {doing} failed with {type(exc).__name__}: {exc}{advice}", exc),
            module_id=module_id,
            reason_code="validation_failed",
        ) from exc


def _is_cancellation(exc: BaseException) -> bool:
    try:
        return isinstance(exc, anyio.get_cancelled_exc_class())
    except RuntimeError:  # no event loop is running, so there is no cancellation
        return False


@contextmanager
def package_from(directory: Path, name: str, module_id: str, root: Path) -> Iterator[ModuleType]:
    """Import the package in a directory under its own name, whatever is on sys.path.

    The import is undone if it fails or if the block raises, which is where the module is examined.

    Args:
        directory: The package itself, with its ``__init__.py``.
        name: The name it is imported by.
        module_id: For whom.
        root: What was given as the module's source; neighbours of the package that were imported from there are
            part of what is undone.

    Raises:
        ModuleConflictError: The name is taken by other code.
        ModuleLoadError: The import failed.
    """
    init = directory / "__init__.py"
    with import_lock, _undone_on_failure(name, root):
        _refuse_taken_name(name, init, module_id)
        finder = _OnePackageFinder(name, init)
        # Through the import system rather than by executing the spec here: only it makes other threads wait for a
        # module that is half-way in.
        sys.meta_path.insert(0, finder)
        try:
            with foreign_code(module_id, f"importing {name!r} from {directory}"):
                module = importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)
        if not _is_from(module, init):
            raise _conflict(module_id, name, init, _location(module))
        yield module
        _from_directories[name] = str(init)


@contextmanager
def installed_module(name: str, module_id: str, origin: str) -> Iterator[ModuleType]:
    """Import a module (dotted names too) by Python's own rules; undone like `package_from`.

    Raises:
        ModuleConflictError: What is imported under that name is not what is installed under it.
        ModuleLoadError: The import failed.
    """
    top = name.partition(".")[0]
    with import_lock, _undone_on_failure(top, None):
        if (loaded := sys.modules.get(top)) is not None:
            with foreign_code(module_id, f"looking for {top!r}"):
                spec = find_installed(top)
            if spec is not None and spec.origin is not None and not _is_from(loaded, Path(spec.origin)):
                raise _conflict(module_id, top, spec.origin, _location(loaded))
            if spec is None and is_from_directory(top):
                raise _conflict(module_id, top, origin, _location(loaded))
        with foreign_code(module_id, f"importing {name!r} ({origin})"):
            module = importlib.import_module(name)
        yield module


def find_installed(name: str) -> ModuleSpec | None:
    """Where Python would import a top-level package from, not counting the roots that loaders hold.

    Imports nothing, and does not look at sys.modules. Namespace packages do not count: any directory of a fitting
    name is one.
    """
    held = _sys_path.held_roots()
    for finder in tuple(sys.meta_path):
        if finder is PathFinder:
            spec = PathFinder.find_spec(name, [entry for entry in sys.path if entry not in held])
        else:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, None)
        if spec is None or spec.origin is None:
            continue
        # A finder that is not PathFinder may consult all of sys.path (pytest's does).
        if str(Path(spec.origin).parent.parent) not in held:
            return spec
    return None


def is_from_directory(name: str) -> bool:
    """Whether the package of that name now imported came from a directory that was named to a loader."""
    loaded = sys.modules.get(name)
    origin = _from_directories.get(name)
    return loaded is not None and origin is not None and _is_from(loaded, Path(origin))


def stdlib_neighbours(root: Path) -> list[tuple[str, str]]:
    """The files in a root that have the name of a standard library module, each with the original's location."""
    found = []
    with os.scandir(root) as entries:
        for entry in entries:
            name = entry.name.partition(".")[0]
            if name in sys.stdlib_module_names and _is_importable(entry, name):
                found.append((entry.path, _stdlib_location(name)))
    return sorted(found)


def _is_importable(entry: os.DirEntry[str], name: str) -> bool:
    if not entry.is_dir():
        return entry.name.endswith((".py", ".pyc", ".so", ".pyd"))
    # A plain directory is a namespace package, which loses against any real module; but some standard modules do not
    # exist on every platform, and `import msvcrt` is how code asks where it runs.
    if Path(entry.path, "__init__.py").exists():
        return True
    return "." not in entry.name and name not in sys.builtin_module_names and find_installed(name) is None


class _OnePackageFinder:
    """Answers for exactly one package name; everything else, its submodules included, is Python's own business."""

    def __init__(self, name: str, init: Path) -> None:
        self._name = name
        self._init = init

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, str(self._init), submodule_search_locations=[str(self._init.parent)])


@contextmanager
def _undone_on_failure(package: str, root: Path | None) -> Iterator[None]:
    """Forget what a failed import left behind, so that the next attempt starts afresh.

    Python itself drops only the module whose body raised, not the submodules and neighbours it had imported before.
    When the package was there before, nothing is dropped: its users hold references to its submodules.
    """
    before = frozenset(sys.modules)
    try:
        yield
    except BaseException:
        if package not in before:
            inside = f"{root}{os.sep}" if root is not None else None
            for name in [name for name in sys.modules if name not in before]:
                module = sys.modules.get(name)
                file = getattr(module, "__file__", None)
                of_package = name == package or name.startswith(f"{package}.")
                if of_package or (inside is not None and isinstance(file, str) and file.startswith(inside)):
                    sys.modules.pop(name, None)
        raise


def _refuse_taken_name(name: str, init: Path, module_id: str) -> None:
    """Refuse a package that would shadow other code."""
    if name in sys.stdlib_module_names:
        raise _conflict(module_id, name, init, _stdlib_location(name), "belongs to the standard library")
    if sys.modules.get(name) is not None:
        return  # importing will give that one, and whether it is the right one is looked at then
    inside = os.path.realpath(init.parent) + os.sep
    for other, module in tuple(sys.modules.items()):
        if other.startswith(f"{name}."):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not os.path.realpath(file).startswith(inside):
                raise _conflict(module_id, other, init, file)
    # A checkout may replace an installed module of the same name, that is what naming a source is for. A package
    # with a name of its own choice may not become everybody's `requests`.
    if not name.startswith(MODULE_PREFIX):
        with foreign_code(module_id, f"looking for {name!r}"):
            spec = find_installed(name)
        if spec is not None and spec.origin is not None and not _same_file(spec.origin, init):
            raise _conflict(module_id, name, init, spec.origin, "is installed")


def _conflict(
    module_id: str, name: str, wanted: object, taken_by: str, how: str = "is already imported"
) -> ModuleConflictError:
    return ModuleConflictError(
        f"module {module_id!r} is to be loaded from {wanted}, but the package name {name!r} {how} "
        f"from {taken_by}; one process holds one package of a name: rename one of them, or restart the process "
        "to change the source",
        module_id=module_id,
    )


def _is_from(module: ModuleType, file: Path) -> bool:
    loaded = getattr(module, "__file__", None)
    return isinstance(loaded, str) and _same_file(loaded, file)


def _same_file(one: str, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _location(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else repr(module)


def _stdlib_location(name: str) -> str:
    if name in sys.builtin_module_names:
        return "the interpreter (built in)"
    spec = find_installed(name)
    return spec.origin if spec is not None and spec.origin is not None else "the standard library"
