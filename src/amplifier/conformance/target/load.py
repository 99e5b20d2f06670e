"""Imports the module under examination, in the worker process only."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs

from amplifier.conformance.target.locate import BACKENDS, EXPECTED_MOUNT, Target
from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleLoadError
from amplifier.functions import mount_functions
from amplifier.loading import LoadedModule, ModuleLoader


@attrs.frozen(kw_only=True)
class LoadedTarget:
    """A module that was imported.

    Attributes:
        target: Where it was found.
        module: Its Python module.
        mount: Its mount function.
        on_session_ready: Its callback, if it has one that can be called.
        module_type: Its type.
        backends: Where it is examined: what it declares to run on, and trio if it declares asyncio.
        needs_island: It declares asyncio without trio, so that it runs on an asyncio island there.
        config: What it is mounted with; ``{directory}`` in a text is replaced by a directory of the session's own.
        given: What it was to be mounted with before anything was guessed, as far as it can be mounted with that.
        plan: What else the mount plan of its session holds.
        triggers: Texts that its handlers may be looking for inside others: what the patterns of its source match.
        starts_processes: Whether its typical calls start processes, which take long, so that fewer calls are made.
    """

    target: Target
    module: ModuleType
    mount: Callable[..., Any]
    on_session_ready: Callable[..., Any] | None
    module_type: str
    backends: tuple[str, ...]
    needs_island: bool = False
    config: dict[str, Any]
    given: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    triggers: tuple[str, ...] = ()
    starts_processes: bool = False

    def mount_on(self, backend: str) -> Callable[..., Any]:
        """The mount function for a backend; call it there."""
        return self._loaded_on(backend).mount

    def ready_on(self, backend: str) -> Callable[..., Any] | None:
        """``on_session_ready`` for a backend; call it there."""
        return self._loaded_on(backend).on_session_ready

    def _loaded_on(self, backend: str) -> LoadedModule:
        plain = LoadedModule(
            module_id=self.target.module_id,
            mount=self.mount,
            module_type=self.module_type,
            on_session_ready=self.on_session_ready,
            origin=self.target.reference,
            path=self.target.file,
        )
        if backend != "trio":
            return plain
        if self.needs_island:
            return plain.on_island()
        # Published modules need not declare anything: their source shows that they call asyncio.
        adapt = ModuleLoader.load_hook
        adapted = plain if adapt is None else adapt(plain)
        return adapted if adapted.is_on_island else plain


def load(target: Target, config: dict[str, Any], plan: dict[str, Any]) -> LoadedTarget:
    """Import a module.

    Raises:
        ModuleLoadError: It has no mount, or its type is not known.
        BaseException: Whatever importing it raised.
    """
    ModuleLoader()  # the first one sets the hooks
    if ModuleLoader.import_hook is not None:  # makes `amplifier_core` importable for published modules
        ModuleLoader.import_hook(target.import_name)
    module = _import(target)
    entry: Any = module
    for name in target.attribute.split("."):
        entry = getattr(entry, name, None)
    mount = getattr(entry, "mount", entry)
    if mount is None and target.attribute == "mount":
        mount = mount_functions(module)
    if not callable(mount):
        raise ModuleLoadError(
            f"{target.import_name} has no {target.attribute!r}; expected {EXPECTED_MOUNT}",
            module_id=target.module_id,
        )
    module_type: Any = target.module_type or getattr(module, "__amplifier_module_type__", None)
    if module_type not in CONTRACTS:
        raise ModuleLoadError(
            f"the type of {target.module_id!r} is not known; name it with --type, mark its functions with @tool or @on, or declare "
            f"__amplifier_module_type__ as one of {', '.join(CONTRACTS)}",
            module_id=target.module_id,
        )
    ready = getattr(module, "on_session_ready", None)
    own = getattr(module, "__amplifier_conformance__", None)
    settings = {**(own if isinstance(own, dict) else {}), **config}
    declared = getattr(module, "__amplifier_backends__", BACKENDS)
    declared = (declared,) if isinstance(declared, str) else tuple(declared)
    return LoadedTarget(
        target=target,
        module=module,
        mount=mount,
        on_session_ready=ready if inspect.iscoroutinefunction(ready) else None,
        module_type=module_type,
        backends=BACKENDS
        if "asyncio" in declared
        else tuple(name for name in BACKENDS if name in declared) or BACKENDS,
        needs_island="asyncio" in declared and "trio" not in declared,
        config=settings,
        given=settings,
        plan=plan,
    )


def load_anew(loaded: LoadedTarget) -> LoadedTarget:
    """Import the module again, as a new process would: with fresh module globals."""
    top = loaded.target.import_name.partition(".")[0]
    prefix = loaded.target.import_name if top == "amplifier" else top
    for name in [name for name in sys.modules if name == prefix or name.startswith(f"{prefix}.")]:
        del sys.modules[name]
    fresh = load(loaded.target, loaded.config, loaded.plan)
    return attrs.evolve(fresh, triggers=loaded.triggers, starts_processes=loaded.starts_processes)


def _import(target: Target) -> ModuleType:
    if target.search_path is not None and str(target.search_path) not in sys.path:
        sys.path.insert(0, str(target.search_path))
    if target.origin != "file":
        return importlib.import_module(target.import_name)
    # By its path: the name of a single file may be that of another module.
    known = sys.modules.get(target.import_name)
    if known is not None and getattr(known, "__file__", None) == str(target.file):
        return known
    spec = importlib.util.spec_from_file_location(target.import_name, target.file)
    assert spec is not None  # a .py file has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.import_name] = module
    spec.loader.exec_module(module)
    return module
