"""Installing and uninstalling the alias, explicitly or when a module imports it; its finder for imports and for `importlib.metadata`; its place in child processes.

The mirror tree is loaded under the published name only, as ordinary modules with files: they can be patched, reloaded and
read. The finder answers for the top-level name; Python itself then finds the submodules through the package's path, so that
other import hooks still apply (pytest rewrites the assertions of the suites in there).

A child process looks up imports by its own rules, so only what it inherits can make the alias importable there: a directory in front of
PYTHONPATH, in which ``amplifier_core`` installs the alias. That is lost when the process is given a PYTHONPATH of its own, as test suites do.

Importing this file costs little and changes one thing: `ModuleLoader` gets an import hook, called before it imports a module for
the first time, and a load hook, called for each module that it has loaded.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from amplifier.errors import ModuleConflictError
from amplifier.loading import LoadedModule, ModuleLoader
from amplifier.loading.importing import is_built_in, is_published

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

ALIAS: Final = "amplifier_core"
DISTRIBUTION: Final = "amplifier-core"
VERSION: Final = "2.0.2"
"""The published version whose surface the mirror has."""

MIRROR: Final = Path(__file__).parent / ALIAS
_MIRROR_FILE: Final = str(MIRROR / "__init__.py")

PLACE: Final = str(Path(__file__).parent / "_path")
"""The directory for the path of other processes."""
_PATH: Final = "PYTHONPATH"

_METADATA: Final = f"""\
Metadata-Version: 2.1
Name: {DISTRIBUTION}
Version: {VERSION}
Summary: The published kernel's surface on this one, installed by amplifier.compat
Requires-Python: >=3.11
"""

_FILES: Final = {
    "METADATA": _METADATA,
    "entry_points.txt": (f"[pytest11]\namplifier_module = {ALIAS}.pytest_plugin\n"),
    "top_level.txt": f"{ALIAS}\n",
    "INSTALLER": "amplifier.compat\n",
}


def alias_spec() -> ModuleSpec:
    """Where ``amplifier_core`` is imported from."""
    spec = spec_from_file_location(ALIAS, _MIRROR_FILE, submodule_search_locations=[str(MIRROR)])
    assert spec is not None  # a path that ends in .py always has a loader
    return spec


def is_alias(module: ModuleType) -> bool:
    """Whether a module is the mirror's top level and not the published package."""
    return getattr(module, "__file__", None) == _MIRROR_FILE


def alias_modules() -> list[str]:
    """The names in sys.modules that belong to ``amplifier_core``, the alias or the published package."""
    return [name for name in sys.modules if name == ALIAS or name.startswith(f"{ALIAS}.")]


class AliasFinder:
    """The first finder, so that an installed wheel of the published kernel is not imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the top-level name."""
        return alias_spec() if fullname == ALIAS else None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Answer for the distribution of that name, unless the query is limited to certain directories."""
        query: dict[str, Any] = {} if context is None else vars(context)
        name = query.get("name")
        if "path" in query or (name is not None and _normalized(name) != DISTRIBUTION):
            return
        yield _distribution()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution() -> Distribution:
    # Imported here because it brings email, csv and zipfile along, and few programs query distributions.
    from importlib.metadata import Distribution  # noqa: PLC0415

    class AliasDistribution(Distribution):
        """The metadata of a distribution that had installed the mirror."""

        def read_text(self, filename: str) -> str | None:
            return _FILES.get(filename)

        def locate_file(self, path: Any) -> Any:
            return MIRROR.parent / path

    return AliasDistribution()


_ADAPTING: Final = "amplifier.compat._adapting"

_lock: Final = threading.RLock()
_finder: Final = AliasFinder()


def install() -> None:
    """Make ``amplifier_core`` importable and give our models the published form; repeating it does nothing.

    Raises:
        ModuleConflictError: The published package is already imported. Its classes are in use then, and ours would be
            different ones of the same name.
    """
    _prepare()
    try:
        # At once, because a finder that is inserted later comes before ours: pytest's would give an installed wheel. Not under
        # the lock: a thread that imports the name holds Python's own lock for it while it waits for ours.
        importlib.import_module(ALIAS)
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Undo `install`: the name, the modules imported under it, the form of the models.

    Objects made meanwhile stay instances of our own classes. Classes that inherited from our models keep their fields. The
    next module that a loader imports may install the alias again.
    """
    with _lock:
        if _on_demand in sys.meta_path:
            sys.meta_path.remove(_on_demand)
        processes = sys.modules.get("amplifier.compat._processes")
        if processes is not None:
            processes.stop_noting()
        if not is_installed():
            return
        sys.meta_path.remove(_finder)
        for name in alias_modules():
            del sys.modules[name]
        _models().detach()


def is_installed() -> bool:
    """Whether ``amplifier_core`` is ours at present."""
    return _finder in sys.meta_path


def _prepare() -> None:
    with _lock:
        if not is_installed():
            _refuse_published_package()
            _models().attach()
            sys.meta_path.insert(0, _finder)


def _models() -> ModuleType:
    # Imported when it is needed, so that `import amplifier` does not pay for what most applications never install.
    return importlib.import_module("amplifier.compat._pydantic")


def _refuse_published_package() -> None:
    present = sys.modules.get(ALIAS)
    if present is not None and not is_alias(present):
        where = getattr(present, "__file__", None) or repr(present)
        way = "run pytest with `-p amplifier.compat.pytest`"
        if "PYTEST_VERSION" not in os.environ:
            way = "start the program with `python -m amplifier.compat PROGRAM`"
        message = f"{ALIAS!r} is already imported from {where}, so it cannot be replaced in this process; {way}"
        raise ModuleConflictError(message, module_id=ALIAS)


# ── child processes ──────────────────────────────────────────────────────────────────────────────


def export_alias() -> None:
    """Make the alias importable in processes that this one starts; repeating it does nothing."""
    entries = _entries()
    if PLACE not in entries:
        os.environ[_PATH] = os.pathsep.join([PLACE, *entries])


def withdraw_alias() -> None:
    """Undo `export_alias`."""
    entries = _entries()
    if PLACE in entries:
        entries.remove(PLACE)
        os.environ[_PATH] = os.pathsep.join(entries)
        if not entries:
            del os.environ[_PATH]


def _entries() -> list[str]:
    return [entry for entry in os.environ.get(_PATH, "").split(os.pathsep) if entry]


# ── in native loaders ────────────────────────────────────────────────────────────────────────────


class _OnDemand:
    """A first finder as well, which installs the alias as soon as ``amplifier_core`` is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ALIAS:
            return None
        _prepare()
        return alias_spec()


_on_demand: Final = _OnDemand()


def prepare_import(package: str) -> None:
    """Have the alias installed as soon as a third-party module, or what it imports, imports ``amplifier_core``, at once or later.

    Args:
        package: What a loader is about to import for the first time.
    """
    if _on_demand not in sys.meta_path and not is_built_in(package):
        sys.meta_path.insert(0, _on_demand)


def adapt(module: LoadedModule) -> LoadedModule:
    """What native loaders call for a module that does not declare its backends.

    Returns:
        The module as it is to be used; see `_adapting.adapted`.

    Raises:
        ModuleConflictError: It was written for the published kernel, which this process has imported.
    """
    present = sys.modules.get(ALIAS)
    if present is None:
        return module
    if not is_alias(present):
        if is_published(str(getattr(module.mount, "__module__", ""))):
            _refuse_published_package()
        return module
    # Called at every load, and the import system is slow even for what is imported already.
    adapting = sys.modules.get(_ADAPTING) or importlib.import_module(_ADAPTING)
    adapted: LoadedModule = adapting.adapted(module)
    return adapted


ModuleLoader.import_hook = staticmethod(prepare_import)
ModuleLoader.load_hook = staticmethod(adapt)
