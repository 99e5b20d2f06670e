"""Installing and uninstalling the alias, explicitly or when a module imports it.

Importing this file costs little and changes one thing: `ModuleLoader` gets an import hook, called before it imports a module for
the first time, and a load hook, called for each module that it has loaded.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from amplifier.errors import ModuleConflictError
from amplifier.loading import Blueprint, ModuleLoader
from amplifier.loading._alias_advice import ENABLE_ALIAS

from .finder import ALIAS, AliasFinder, alias_modules, alias_spec, is_alias

_ADAPTING: Final = "amplifier.compat._modules.adapting"

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
        if _last_resort in sys.meta_path:
            sys.meta_path.remove(_last_resort)
        processes = sys.modules.get("amplifier.compat._modules.processes")
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
        raise ModuleConflictError(
            f"{ALIAS!r} is already imported from {where}, so it cannot be replaced in this process; call "
            "amplifier.compat.install() before anything imports it, start with `python -m amplifier.compat`, run "
            f"pytest with `-p amplifier.compat.pytest`, or {ENABLE_ALIAS}",
            module_id=ALIAS,
        )


class _LastResort:
    """The last finder: it is called for ``amplifier_core`` only when no other finder has it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ALIAS:
            return None
        _prepare()
        return alias_spec()


_last_resort: Final = _LastResort()


def prepare_import(package: str) -> None:
    """Install the alias as soon as a module imports ``amplifier_core``, at its own import or later inside a function.

    Args:
        package: What a loader is about to import for the first time; not used, since any package may import it later.
    """
    if _last_resort not in sys.meta_path:
        sys.meta_path.append(_last_resort)


def adapt(module_id: str, blueprint: Blueprint) -> Blueprint:
    """What native loaders call for a module that does not declare its backends.

    Returns:
        The module as it is to be used; see `_adapting.adapted`.
    """
    if ALIAS not in sys.modules:
        return blueprint
    # Called at every load, and the import system is slow even for what is imported already.
    adapting = sys.modules.get(_ADAPTING) or importlib.import_module(_ADAPTING)
    adapted: Blueprint = adapting.adapted(module_id, blueprint)
    return adapted


ModuleLoader.import_hook = staticmethod(prepare_import)
ModuleLoader.load_hook = staticmethod(adapt)
