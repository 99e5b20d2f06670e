"""Install and uninstall the alias ``amplifier_core``. The import sets the loader's hooks."""

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
"""The published version that the mirror imitates."""

MIRROR: Final = Path(__file__).parent / ALIAS
_MIRROR_FILE: Final = str(MIRROR / "__init__.py")

PLACE: Final = str(Path(__file__).parent / "_path")
"""The directory on the path of other processes that makes the alias importable there."""
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
    """Return the spec by which ``amplifier_core`` is imported."""
    spec = spec_from_file_location(ALIAS, _MIRROR_FILE, submodule_search_locations=[str(MIRROR)])
    # A path that ends in .py always has a loader.
    assert spec is not None
    return spec


def is_alias(module: ModuleType) -> bool:
    """Return whether a module is the mirror's top level and not the published package."""
    return getattr(module, "__file__", None) == _MIRROR_FILE


def alias_modules() -> list[str]:
    """Return the names in sys.modules that belong to ``amplifier_core``, published or not."""
    return [name for name in sys.modules if name == ALIAS or name.startswith(f"{ALIAS}.")]


# The mirror tree is loaded under the published name only, as ordinary modules with files, which can
# be patched, reloaded and read. The finder handles the top-level name. Python itself finds the
# submodules through the package's path, so that other import hooks still apply. Pytest rewrites the
# assertions of the suites in there.


class AliasFinder:
    """The first finder, so that an installed wheel of the published kernel isn't imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the top-level name."""
        return alias_spec() if fullname == ALIAS else None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yield the distribution of that name, unless the query is limited to directories."""
        query: dict[str, Any] = {} if context is None else vars(context)
        name = query.get("name")
        if "path" in query or (name is not None and _normalized(name) != DISTRIBUTION):
            return
        yield _distribution()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution() -> Distribution:
    # This module imports email, csv and zipfile, and few programs query distributions.
    from importlib.metadata import Distribution  # noqa: PLC0415

    class AliasDistribution(Distribution):
        """The metadata of a distribution that would have installed the mirror."""

        def read_text(self, filename: str) -> str | None:
            return _FILES.get(filename)

        def locate_file(self, path: Any) -> Any:
            return MIRROR.parent / path

    return AliasDistribution()


_ADAPTING: Final = "amplifier.compat._adapting"

_lock: Final = threading.RLock()
_finder: Final = AliasFinder()


def install() -> None:
    """Make ``amplifier_core`` importable and give our models the published form.

    A second call does nothing.

    Raises:
        ModuleConflictError: The published package is already imported. Its classes are then in use,
            and ours would be different classes with the same names.
    """
    _prepare()
    try:
        # Import it immediately, because a finder that is inserted later comes before ours, and
        # pytest's would import an installed wheel. Don't hold the lock here, because a thread that
        # imports the name holds Python's lock for it while it waits for ours.
        importlib.import_module(ALIAS)
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Undo `install` for the name, the modules imported under it, and the form of the models.

    Objects created meanwhile stay instances of our classes. Classes that inherited from our models
    keep their fields. The next module that a loader imports may install the alias again.
    """
    with _lock:
        if _on_demand in sys.meta_path:
            sys.meta_path.remove(_on_demand)
        processes = sys.modules.get("amplifier.compat._processes")
        if processes is not None:
            processes.stop_recording()
        if not is_installed():
            return
        sys.meta_path.remove(_finder)
        for name in alias_modules():
            del sys.modules[name]
        _models().detach()


def is_installed() -> bool:
    """Return whether ``amplifier_core`` is ours at present."""
    return _finder in sys.meta_path


def _prepare() -> None:
    with _lock:
        if not is_installed():
            _refuse_published_package()
            _models().attach()
            sys.meta_path.insert(0, _finder)


def _models() -> ModuleType:
    # Few applications install the alias, so `import amplifier` doesn't load this.
    return importlib.import_module("amplifier.compat._pydantic")


def _refuse_published_package() -> None:
    present = sys.modules.get(ALIAS)
    if present is not None and not is_alias(present):
        origin = getattr(present, "__file__", None) or repr(present)
        advice = "run pytest with `-p amplifier.compat.pytest`"
        if "PYTEST_VERSION" not in os.environ:
            advice = "start the program with `python -m amplifier.compat PROGRAM`"
        raise ModuleConflictError(
            f"{ALIAS!r} is already imported from {origin}, so it cannot be replaced in this "
            f"process; {advice}",
            module_id=ALIAS,
        )


# ── child processes ──────────────────────────────────────────────────────────────────────────────
# A child process finds the alias only through its environment: a directory in front of PYTHONPATH,
# in which ``amplifier_core`` installs the alias. A process with its own PYTHONPATH, such as some
# that test suites start, doesn't have it.


def export_alias() -> None:
    """Make the alias importable in processes that this one starts. A second call does nothing."""
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
    """A finder that installs the alias as soon as ``amplifier_core`` is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ALIAS:
            return None
        _prepare()
        return alias_spec()


_on_demand: Final = _OnDemand()


def prepare_import(package: str) -> None:
    """Install the alias on the first import of ``amplifier_core``, now or later.

    Args:
        package: The package that a loader is about to import for the first time.
    """
    if _on_demand not in sys.meta_path and not is_built_in(package):
        sys.meta_path.insert(0, _on_demand)


def adapt(module: LoadedModule) -> LoadedModule:
    """Adapt a module that doesn't declare its backends, for native loaders.

    Returns:
        The module to use. See `_adapting.adapted`.

    Raises:
        ModuleConflictError: The module was written for the published kernel, which this process has
            imported.
    """
    present = sys.modules.get(ALIAS)
    if present is None:
        return module
    if not is_alias(present):
        if is_published(str(getattr(module.mount, "__module__", ""))):
            _refuse_published_package()
        return module
    # This runs at every load, and the import system is slow even for an imported module.
    adapting = sys.modules.get(_ADAPTING) or importlib.import_module(_ADAPTING)
    adapted: LoadedModule = adapting.adapted(module)
    return adapted


ModuleLoader.import_hook = staticmethod(prepare_import)
ModuleLoader.load_hook = staticmethod(adapt)
