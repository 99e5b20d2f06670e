"""Import third-party packages so that a bad one doesn't harm others."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from amplifier.errors import ModuleConflictError, ModuleLoadError

# Allow one import at a time, so that undoing a failed import doesn't remove the modules of another.
import_lock: Final = threading.RLock()

# The files of packages that were imported from a source directory, by name. A session without that
# source must not get such a package just because another session in the process uses it.
_from_directories: Final[dict[str, str]] = {}

MODULE_PREFIX: Final = "amplifier_module_"


@contextmanager
def foreign_code(module_id: str, operation: str) -> Iterator[None]:
    """Turn any error of foreign code into a `ModuleLoadError` with the error as its cause.

    A module that calls ``sys.exit()`` has failed, and the process continues. A cancellation is a
    failure as well, because a real one can't reach code that doesn't wait.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    # Foreign code may raise anything.
    except BaseException as exc:
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        advice = f"; it needs {missing!r}, which cannot be found" if missing else ""
        text = f"module {module_id!r}: {operation} failed with {type(exc).__name__}: {exc}{advice}"
        raise ModuleLoadError(
            advise_on_alias(text, exc), module_id=module_id, reason_code="validation_failed"
        ) from exc


@contextmanager
def package_from(directory: Path, name: str, module_id: str, root: Path) -> Iterator[ModuleType]:
    """Import the package in a directory under its own name, regardless of sys.path.

    The module is examined in the block. The import is undone if it fails or if the block raises.

    Args:
        directory: The directory of the package, with its ``__init__.py``.
        name: The name under which the package is imported.
        module_id: The id of the module, for messages.
        root: The source of the module. Imports of other packages from there are undone as well.

    Raises:
        ModuleConflictError: The name is taken by other code.
        ModuleLoadError: The import failed.
    """
    init = directory / "__init__.py"
    with import_lock, _undone_on_failure(name, root):
        _refuse_taken_name(name, init, module_id)

        def find_spec(fullname: str, *_: object) -> ModuleSpec | None:
            # Python finds the submodules itself.
            if fullname != name:
                return None
            return spec_from_file_location(name, init, submodule_search_locations=[str(directory)])

        finder: Any = SimpleNamespace(find_spec=find_spec)
        # The import system makes other threads wait for a partly imported module. Executing the
        # spec here would not.
        sys.meta_path.insert(0, finder)
        try:
            with foreign_code(module_id, f"importing {name!r} from {directory}"):
                module = importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)
        if not _is_from(module, init):
            raise _conflict(module_id, name, init, _file_of(module) or repr(module))
        yield module
        _from_directories[name] = str(init)


@contextmanager
def installed_module(name: str, module_id: str, origin: str) -> Iterator[ModuleType]:
    """Import a Python module, including one with a dotted name. It is undone like `package_from`.

    Raises:
        ModuleConflictError: Code other than the installed module is imported under that name.
        ModuleLoadError: The import failed.
    """
    top = name.partition(".")[0]
    with import_lock, _undone_on_failure(top, None):
        if (loaded := sys.modules.get(top)) is not None:
            with foreign_code(module_id, f"looking for {top!r}"):
                spec = find_installed(top)
            if spec is not None and spec.origin is not None and not _is_from(loaded, spec.origin):
                raise _conflict(module_id, top, spec.origin, _file_of(loaded) or repr(loaded))
            if spec is None and is_from_directory(top):
                raise _conflict(module_id, top, origin, _file_of(loaded) or repr(loaded))
        with foreign_code(module_id, f"importing {name!r} ({origin})"):
            module = importlib.import_module(name)
        yield module


def find_installed(name: str) -> ModuleSpec | None:
    """Return the spec by which Python would import a top-level package, or None.

    This ignores sys.modules and the roots that loaders hold. Namespace packages don't count,
    because any directory with that name is one.
    """
    held = held_roots()
    for finder in tuple(sys.meta_path):
        if finder is PathFinder:
            spec = PathFinder.find_spec(name, [entry for entry in sys.path if entry not in held])
        else:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, None)
        if spec is None or spec.origin is None:
            continue
        # Other finders, such as pytest's, may search all of sys.path.
        if str(Path(spec.origin).parent.parent) not in held:
            return spec
    return None


def is_from_directory(name: str) -> bool:
    """Return whether the imported package of that name came from a source directory."""
    loaded, origin = sys.modules.get(name), _from_directories.get(name)
    return loaded is not None and origin is not None and _is_from(loaded, origin)


@contextmanager
def _undone_on_failure(package: str, root: Path | None) -> Iterator[None]:
    """Drop the modules that a failed import left behind, so that a new attempt starts clean.

    Python itself drops only the module that raised, not the modules it had imported. Nothing is
    dropped from a package that was imported earlier, because its users refer to its submodules.
    """
    before = frozenset(sys.modules)
    try:
        yield
    except BaseException:
        if package not in before:
            inside = f"{root}{os.sep}" if root is not None else None
            for name in [name for name in sys.modules if name not in before]:
                of_package = name == package or name.startswith(f"{package}.")
                if of_package or (
                    inside is not None and _file_of(sys.modules.get(name)).startswith(inside)
                ):
                    sys.modules.pop(name, None)
        raise


def _refuse_taken_name(name: str, init: Path, module_id: str) -> None:
    """Raise if a package would shadow other code."""
    if name in sys.stdlib_module_names:
        spec = None if name in sys.builtin_module_names else find_installed(name)
        place = "the interpreter (built in)" if spec is None else str(spec.origin)
        raise _conflict(module_id, name, init, place, "belongs to the standard library")
    # The import returns the module found here, and `package_from` checks it.
    if sys.modules.get(name) is not None:
        return
    inside = os.path.realpath(init.parent) + os.sep
    for other, module in tuple(sys.modules.items()):
        file = _file_of(module) if other.startswith(f"{name}.") else ""
        if file and not os.path.realpath(file).startswith(inside):
            raise _conflict(module_id, other, init, file)
    # A source is meant to replace an installed module with the same name. A package with a name
    # outside the convention must not become `requests` for the whole process.
    if not name.startswith(MODULE_PREFIX):
        with foreign_code(module_id, f"looking for {name!r}"):
            spec = find_installed(name)
        if (
            spec is not None
            and spec.origin is not None
            and os.path.realpath(spec.origin) != os.path.realpath(init)
        ):
            raise _conflict(module_id, name, init, spec.origin, "is installed")


def _conflict(
    module_id: str, name: str, wanted: object, other: str, state: str = "is already imported"
) -> ModuleConflictError:
    return ModuleConflictError(
        f"module {module_id!r} is to be loaded from {wanted}, but the package name {name!r} "
        f"{state} from {other}; one process holds one package of a name: rename one of them, or "
        "restart the process to change the source",
        module_id=module_id,
    )


def _file_of(module: ModuleType | None) -> str:
    """Return the file of an imported module, or an empty text."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _is_from(module: ModuleType, file: Path | str) -> bool:
    loaded = _file_of(module)
    return loaded != "" and os.path.realpath(loaded) == os.path.realpath(file)


# ── the alias of published modules ───────────────────────────────────────────────────────────────

# A process of this package makes `amplifier_core` importable itself. Processes started by other
# code may lack the alias, usually because they set PYTHONPATH. If the error of such a process
# arrives here, the message names the command that helps.
ENABLE_ALIAS: Final = (
    "run `python -m amplifier.compat enable` once for all processes of this environment"
)

_MISSING: Final = "No module named 'amplifier_core'"
_IMPORTS_ALIAS: Final = re.compile(rb"^\s*(?:from|import)\s+amplifier_core\b", re.MULTILINE)


def is_built_in(package: str) -> bool:
    """Return whether a Python module is part of this package."""
    return package.partition(".")[0] == "amplifier"


def is_published(package: str) -> bool:
    """Return whether a Python module belongs to a package written for the published kernel."""
    root = package.partition(".")[0]
    if root == "amplifier":
        return False
    # A published module is a whole package. Otherwise only the file of the mount function is read.
    file = _file_of(sys.modules.get(root if root.startswith(MODULE_PREFIX) else package))
    return file != "" and imports_alias(file)


def is_published_mount(mount: object) -> bool:
    """Return whether a mount function was written for the published kernel.

    No published module has a structured mount.
    """
    return inspect.iscoroutinefunction(mount) and is_published(
        str(getattr(mount, "__module__", ""))
    )


@lru_cache(maxsize=256)
def imports_alias(file: str) -> bool:
    """Return whether a file imports ``amplifier_core``, at its top or inside a function.

    For an ``__init__.py``, all files of its package are read.
    """
    start = Path(file)
    for path in start.parent.rglob("*.py") if start.name == "__init__.py" else [start]:
        if "tests" in path.relative_to(start.parent).parts:
            continue
        with suppress(OSError):
            if _IMPORTS_ALIAS.search(path.read_bytes()):
                return True
    return False


def lacks_alias(text: str, error: BaseException | None = None) -> bool:
    """Return whether an error is about a missing ``amplifier_core``.

    Args:
        text: The message of the error.
        error: The error itself. The error of a process may hold its standard error output.
    """
    written = getattr(error, "stderr", None)
    if isinstance(written, bytes):
        written = written.decode(errors="replace")
    return _MISSING in text or (isinstance(written, str) and _MISSING in written)


def advise_on_alias(text: str, error: BaseException | None = None) -> str:
    """Return an error's text, with advice if it is about a missing ``amplifier_core``."""
    if ENABLE_ALIAS in text or not lacks_alias(text, error):
        return text
    return f"{text}; a process without the alias cannot import 'amplifier_core': {ENABLE_ALIAS}"


# ── sys.path ─────────────────────────────────────────────────────────────────────────────────────

_holders: Final[dict[str, set[tuple[HeldRoots, int | None]]]] = {}
_lock: Final = threading.Lock()


def held_roots() -> Container[str]:
    """Return a live view of the entries that loaders put on sys.path."""
    return _holders.keys()


class HeldRoots:
    """The roots that one loader holds on sys.path, each for a session or for None.

    An entry stays until the last holder in the process gives it up. Holders keep the ``id()`` of a
    session instead of a reference, so that a loader kept by an application doesn't keep alive a
    session that was dropped without being closed.
    """

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: set[int] = set()

    def __len__(self) -> int:
        return sum(
            any(loader is self for loader, _ in holders) for holders in tuple(_holders.values())
        )

    def begin(self, user: object) -> None:
        """Record that a session starts to use the loader."""
        self._users.add(id(user))

    def end(self, user: object) -> None:
        """Give up the roots of a session that has closed.

        The last session gives up the roots held for None as well.
        """
        if id(user) in self._users:
            self._give_up(None if self._users == {id(user)} else {id(user)})
            # Do this last, so that an interrupted call can be repeated.
            self._users.discard(id(user))

    def add(self, root: str, user: object) -> bool:
        """Make a root importable for a session, or for None.

        It is appended to sys.path. An entry before the standard library or installed packages would
        shadow them for every other import in the process.

        Returns:
            True if the session newly holds the root. False if it held it before, or if the root was
            on sys.path without a loader.
        """
        holder = (self, None if user is None else id(user))
        with _lock:
            if root not in _holders and root in sys.path:
                return False
            holders = _holders.setdefault(root, set())
            is_new = holder not in holders
            holders.add(holder)
            if root not in sys.path:
                sys.path.append(root)
            return is_new

    def discard(self, root: str, user: object) -> None:
        """Give up a root that `add` has just added."""
        self._give_up({None if user is None else id(user)}, root)

    def clear(self) -> None:
        """Give up every root, even one in use."""
        self._give_up(None)

    def _give_up(self, users: Container[int | None] | None, only: str | None = None) -> None:
        with _lock:
            for root in tuple(_holders) if only is None else (only,):
                held = {
                    holder
                    for holder in _holders[root]
                    if holder[0] is self and (users is None or holder[1] in users)
                }
                if left := _holders[root] - held:
                    _holders[root] = left
                    continue
                # Search from the end, because an equal entry further in front wasn't added by a
                # loader.
                for position in range(len(sys.path) - 1, -1, -1):
                    if sys.path[position] == root:
                        del sys.path[position]
                        break
                sys.path_importer_cache.pop(root, None)
                del _holders[root]
