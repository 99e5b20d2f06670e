"""Importing third-party packages so that a bad one does not harm others.

Here are the rules about names (a package may not shadow another one or the standard library), about failures (the cause is kept,
sys.modules is as it was before) and about sys.path (whose entries are counted for the whole process, and removed with the last user).
"""

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

# One import of a module at a time, so that undoing a failed one cannot tear down a neighbour's.
import_lock: Final = threading.RLock()

# Packages imported from a directory given as a source, by name. A session that named no directory must not get
# them merely because another session in the process did.
_from_directories: Final[dict[str, str]] = {}

MODULE_PREFIX: Final = "amplifier_module_"


@contextmanager
def foreign_code(module_id: str, doing: str) -> Iterator[None]:
    """Turn whatever foreign code raises at import into a `ModuleLoadError` that keeps it as its cause.

    SystemExit too: a module that calls ``sys.exit()`` failed, the process did not. So did one that raises a cancellation: none can
    reach code that cannot wait.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # foreign module code may raise anything at all
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        advice = f"; it needs {missing!r}, which cannot be found" if missing else ""
        raise ModuleLoadError(
            advise_on_alias(
                f"module {module_id!r}: {doing} failed with {type(exc).__name__}: {exc}{advice}",
                exc,
            ),
            module_id=module_id,
            reason_code="validation_failed",
        ) from exc


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

        def find_spec(
            fullname: str, *_: object
        ) -> ModuleSpec | None:  # its submodules are Python's own business
            places = [str(directory)]
            is_meant = fullname == name
            return (
                spec_from_file_location(name, init, submodule_search_locations=places)
                if is_meant
                else None
            )

        finder: Any = SimpleNamespace(find_spec=find_spec)
        # Through the import system rather than by executing the spec here: only it makes other threads wait for a
        # module that is half-way in.
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
            if spec is not None and spec.origin is not None and not _is_from(loaded, spec.origin):
                raise _conflict(module_id, top, spec.origin, _file_of(loaded) or repr(loaded))
            if spec is None and is_from_directory(top):
                raise _conflict(module_id, top, origin, _file_of(loaded) or repr(loaded))
        with foreign_code(module_id, f"importing {name!r} ({origin})"):
            module = importlib.import_module(name)
        yield module


def find_installed(name: str) -> ModuleSpec | None:
    """Where Python would import a top-level package from, not counting the roots that loaders hold.

    Imports nothing, and does not look at sys.modules. Namespace packages do not count: any directory of a fitting
    name is one.
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
        # A finder that is not PathFinder may consult all of sys.path (pytest's does).
        if str(Path(spec.origin).parent.parent) not in held:
            return spec
    return None


def is_from_directory(name: str) -> bool:
    """Whether the package of that name now imported came from a directory that was named to a loader."""
    loaded, origin = sys.modules.get(name), _from_directories.get(name)
    return loaded is not None and origin is not None and _is_from(loaded, origin)


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
                of_package = name == package or name.startswith(f"{package}.")
                if of_package or (
                    inside is not None and _file_of(sys.modules.get(name)).startswith(inside)
                ):
                    sys.modules.pop(name, None)
        raise


def _refuse_taken_name(name: str, init: Path, module_id: str) -> None:
    """Refuse a package that would shadow other code."""
    if name in sys.stdlib_module_names:
        spec = None if name in sys.builtin_module_names else find_installed(name)
        place = "the interpreter (built in)" if spec is None else str(spec.origin)
        raise _conflict(module_id, name, init, place, "belongs to the standard library")
    if sys.modules.get(name) is not None:
        return  # importing will give that one, and whether it is the right one is looked at then
    inside = os.path.realpath(init.parent) + os.sep
    for other, module in tuple(sys.modules.items()):
        file = _file_of(module) if other.startswith(f"{name}.") else ""
        if file and not os.path.realpath(file).startswith(inside):
            raise _conflict(module_id, other, init, file)
    # A checkout may replace an installed module of the same name, that is what naming a source is for. A package
    # with a name of its own choice may not become everybody's `requests`.
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
    module_id: str, name: str, wanted: object, taken_by: str, how: str = "is already imported"
) -> ModuleConflictError:
    return ModuleConflictError(
        f"module {module_id!r} is to be loaded from {wanted}, but the package name {name!r} {how} "
        f"from {taken_by}; one process holds one package of a name: rename one of them, or restart the process "
        "to change the source",
        module_id=module_id,
    )


def _file_of(module: ModuleType | None) -> str:
    """The file of an imported module; empty for one that has none."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _is_from(module: ModuleType, file: Path | str) -> bool:
    loaded = _file_of(module)
    return loaded != "" and os.path.realpath(loaded) == os.path.realpath(file)


# ── the alias of published modules ───────────────────────────────────────────────────────────────

# A process of this package makes `amplifier_core` importable by itself. A process that others start may lack it, above all one that
# is given a PYTHONPATH of its own; where its error reaches us, the message names the command that helps.
ENABLE_ALIAS: Final = (
    "run `python -m amplifier.compat enable` once for all processes of this environment"
)

_MISSING: Final = "No module named 'amplifier_core'"
_IMPORTS_ALIAS: Final = re.compile(rb"^\s*(?:from|import)\s+amplifier_core\b", re.MULTILINE)


def is_built_in(package: str) -> bool:
    """Whether a Python module is one of ours."""
    return package.partition(".")[0] == "amplifier"


def is_published(package: str) -> bool:
    """Whether a Python module belongs to a package that was written for the published kernel."""
    root = package.partition(".")[0]
    if root == "amplifier":
        return False
    # A published module is a package of its own; of anything else only the file with the mount function is read.
    file = _file_of(sys.modules.get(root if root.startswith(MODULE_PREFIX) else package))
    return file != "" and imports_alias(file)


def is_published_mount(mount: object) -> bool:
    """Whether a mount function was written for the published kernel. A structured one was not: no published module has one."""
    return inspect.iscoroutinefunction(mount) and is_published(
        str(getattr(mount, "__module__", ""))
    )


@lru_cache(maxsize=256)
def imports_alias(file: str) -> bool:
    """Whether a file, or a package whose ``__init__.py`` it is, imports ``amplifier_core``, at its top or inside a function."""
    start = Path(file)
    for path in start.parent.rglob("*.py") if start.name == "__init__.py" else [start]:
        if "tests" in path.relative_to(start.parent).parts:
            continue
        with suppress(OSError):
            if _IMPORTS_ALIAS.search(path.read_bytes()):
                return True
    return False


def lacks_alias(text: str, error: BaseException | None = None) -> bool:
    """Whether an error is about a missing ``amplifier_core``.

    Args:
        text: What the error reports.
        error: The error itself; one about a process may carry what that process wrote to its standard error.
    """
    written = getattr(error, "stderr", None)
    if isinstance(written, bytes):
        written = written.decode(errors="replace")
    return _MISSING in text or (isinstance(written, str) and _MISSING in written)


def advise_on_alias(text: str, error: BaseException | None = None) -> str:
    """An error's text, with the advice if it is about a missing ``amplifier_core`` and does not have it yet."""
    if ENABLE_ALIAS in text or not lacks_alias(text, error):
        return text
    return f"{text}; a process without the alias cannot import 'amplifier_core': {ENABLE_ALIAS}"


# ── sys.path ─────────────────────────────────────────────────────────────────────────────────────

_holders: Final[dict[str, set[tuple[HeldRoots, int | None]]]] = {}
_lock: Final = threading.Lock()


def held_roots() -> Container[str]:
    """The entries that are on sys.path only because loaders put them there, as a live view."""
    return _holders.keys()


class HeldRoots:
    """The roots that one loader holds on sys.path, by the session that uses them; what no session asked for is held for None.

    An entry stays until the last holder in the process gives it up. Sessions are known by their id, not by reference: a loader that
    an application keeps must not keep a session alive that was dropped without being closed.
    """

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: set[int] = set()

    def __len__(self) -> int:
        return sum(
            any(loader is self for loader, _ in holders) for holders in tuple(_holders.values())
        )

    def begin(self, user: object) -> None:
        """A session starts to use the loader."""
        self._users.add(id(user))

    def end(self, user: object) -> None:
        """A session has closed: its roots are given up; the last session gives up those held for None as well."""
        if id(user) in self._users:
            self._give_up(None if self._users == {id(user)} else {id(user)})
            self._users.discard(id(user))  # last: interrupted, it can be done again

    def add(self, root: str, user: object) -> bool:
        """Make a root importable for a session, or for None, behind everything that already is.

        Appended, never inserted: an entry before the standard library or installed packages replaces them for every other import in
        the process.

        Returns:
            Whether it is held now and was not before; False also when it was on sys.path already, not through a loader.
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
        """Give up a root that `add` has just taken."""
        self._give_up({None if user is None else id(user)}, root)

    def clear(self) -> None:
        """Give up every root, whoever uses it."""
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
                # From the end: an equal entry further in front is not a loader's.
                for position in range(len(sys.path) - 1, -1, -1):
                    if sys.path[position] == root:
                        del sys.path[position]
                        break
                sys.path_importer_cache.pop(root, None)
                del _holders[root]
