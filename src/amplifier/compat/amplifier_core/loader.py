"""The loader in its published form: `load` gives a function that mounts, and validates what a resolver names.

Finding and importing are written here in the published order and with the published private names, because suites call and
patch them. Our own loader is `amplifier.loading.ModuleLoader`; native sessions use that one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplifier.compat._modules.adapting import mount_published
from amplifier.compat._modules.installed import built_in_claim, mount_of, third_party_entries
from amplifier.errors import ModuleLoadError
from amplifier.loading import Pin, find_pinned, read_pin
from amplifier.loading import entry_points as installed_entry_points

from . import _transports
from ._engine import RustCoordinator as ModuleCoordinator
from .models import ModuleInfo
from .module_sources import ModuleNotFoundError as SourceNotFoundError

__all__ = [
    "MODULE_FAILURE_REASONS",
    "TYPE_TO_MOUNT_POINT",
    "ModuleLoader",
    "ModuleValidationError",
    "module_failure_reason",
]

logger: logging.Logger = logging.getLogger(__name__)

Mount = Callable[[Any], Awaitable[Any]]

TYPE_TO_MOUNT_POINT = {
    "orchestrator": "orchestrator",
    "provider": "providers",
    "tool": "tools",
    "hook": "hooks",
    "context": "context",
    "resolver": "module-source-resolver",
}

MODULE_FAILURE_REASONS = frozenset(
    {
        "invalid_package_layout",
        "missing_source",
        "invalid_entry_point",
        "invalid_module_metadata",
        "validation_failed",
        "unknown",
    }
)

_WORDS_OF_TYPES = (
    ("orchestrat", "orchestrator"),
    ("loop", "orchestrator"),
    ("provider", "provider"),
    ("tool", "tool"),
    ("hook", "hook"),
    ("context", "context"),
)

_ABOUT_THE_ENTRY = frozenset({"mount_exists", "mount_signature", "on_session_ready_async"})


class ModuleValidationError(Exception):
    """The module was found, but it is not one."""

    def __init__(self, message: str, *, reason_code: str = "validation_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


class _ModuleDiscoveryError(ValueError):
    """There is no such module."""

    def __init__(self, message: str, *, reason_code: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


def module_failure_reason(error: BaseException) -> str:
    """Why a module could not be loaded, in one of `MODULE_FAILURE_REASONS`; other errors are ``unknown``."""
    if isinstance(error, SourceNotFoundError):
        return "missing_source"
    if isinstance(error, ModuleValidationError | _ModuleDiscoveryError | ModuleLoadError):
        code: Any = error.reason_code  # an attribute, so it may hold any value
        if isinstance(code, str) and code in MODULE_FAILURE_REASONS:
            return code
    return "unknown"


class ModuleLoader:
    """Finds modules by id.

    Args:
        coordinator: Whose ``module-source-resolver`` is used.
        search_paths: Directories for `discover`; `load` does not look there.
    """

    def __init__(self, coordinator: ModuleCoordinator | None = None, search_paths: list[Path] | None = None) -> None:
        self._loaded_modules: dict[str, Any] = {}
        self._loaded_module_paths: dict[str, Path] = {}
        self._module_info: dict[str, ModuleInfo] = {}
        self._search_paths = search_paths
        self._coordinator = coordinator
        self._added_paths: list[str] = []
        self._on_session_ready_queue: list[tuple[str, Callable[..., Any]]] = []

    # ── what there is ──

    async def discover(self) -> list[ModuleInfo]:
        """List the modules of entry points and directories; what cannot be read is logged and left out."""
        found = self._discover_entry_points()
        paths: list[Path] = list(self._search_paths or ())
        if not paths:
            paths = [Path(path) for path in os.environ.get("AMPLIFIER_MODULES", "").split(":") if path]
        for path in paths:
            found += self._discover_filesystem(path)
        return found

    def _discover_entry_points(self) -> list[ModuleInfo]:
        found = []
        try:
            for entry in third_party_entries():
                try:
                    found.append(self._note(entry.name, *self._guess_from_naming(entry.name)))
                except Exception as exc:  # noqa: BLE001 — metadata written by others
                    logger.error("Error discovering module %s: %s", entry.name, exc)
        except Exception as exc:  # noqa: BLE001 — metadata written by others
            logger.warning("Could not discover entry points: %s", exc)
        return found

    def _discover_filesystem(self, path: Path) -> list[ModuleInfo]:
        if not path.exists():
            logger.warning("Module path does not exist: %s", path)
            return []
        found = []
        for directory in path.iterdir():
            if not (directory.is_dir() and directory.name.startswith("amplifier-module-")):
                continue
            module_id = directory.name.removeprefix("amplifier-module-")
            try:
                found.append(self._note(module_id, *self._get_module_metadata(module_id, directory)))
            except Exception as exc:  # noqa: BLE001 — imports other people's code
                logger.error("Error discovering module %s: %s", directory.name, exc)
        return found

    def _note(self, module_id: str, module_type: Any, mount_point: str) -> ModuleInfo:
        info = ModuleInfo(
            id=module_id,
            name=module_id.replace("-", " ").title(),
            version="1.0.0",
            type=module_type,
            mount_point=mount_point,
            description=f"Module: {module_id}",
        )
        self._module_info[module_id] = info
        return info

    # ── loading ──

    async def load(
        self,
        module_id: str,
        config: dict[str, Any] | None = None,
        source_hint: str | dict[str, Any] | None = None,
        coordinator: Any = None,
    ) -> Mount:
        """Find a module.

        Args:
            module_id: What to load.
            config: What its mount will be called with.
            source_hint: Handed to the resolver, unless it pins an installed distribution or the built-in module.
            coordinator: Given, modules in other languages are recognized and refused at mount.

        Returns:
            ``await mount(coordinator)`` mounts the module and gives its cleanup.

        Raises:
            ValueError: There is no such module.
            ModuleValidationError: What the resolver named is not a module.
            ImportError: The package is already loaded from elsewhere.
        """
        try:
            pin = read_pin(source_hint)
            if pin is not None:
                return self._load_pinned(module_id, config, pin)
            resolver = self._resolver()
            known = self._loaded_modules.get(module_id)
            path = self._loaded_module_paths.get(module_id)
            if known is not None and (resolver is None or path is not None):
                if resolver is not None and path is not None:
                    await self._refuse_other_source(resolver, module_id, source_hint, path)
                return _closure(module_id, known, config)
            if resolver is None:
                mount = await self._load_direct(module_id, config)
                if mount is None:
                    raise _ModuleDiscoveryError(
                        f"Module '{module_id}' not found via entry points or filesystem", reason_code="missing_source"
                    )
                return mount
            return await self._load_resolved(resolver, module_id, config, source_hint, coordinator)
        except Exception as exc:
            logger.error("Failed to load module '%s': %s", module_id, exc)
            raise

    def _resolver(self) -> Any:
        if self._coordinator is None:
            return None
        with suppress(ValueError):
            return self._coordinator.get("module-source-resolver")
        return None

    async def _refuse_other_source(self, resolver: Any, module_id: str, hint: Any, path: Path) -> None:
        wanted = (await _resolve(resolver, module_id, hint)).resolve().resolve()
        if wanted != path:
            raise ImportError(f"Refusing to load '{module_id}' from {wanted}: it is already loaded from {path}")

    async def _load_resolved(self, resolver: Any, module_id: str, config: Any, hint: Any, coordinator: Any) -> Mount:
        try:
            source = await _resolve(resolver, module_id, hint)
            module_path = source.resolve()
            logger.info("[module:mount] %s from %s", module_id, source)
            self._add_path(str(module_path))
            other = (
                None if coordinator is None else await self._load_foreign(module_path, module_id, config, coordinator)
            )
            if other is not None:
                return other
            package = await self._validate_module(module_id, module_path, config=config)
        except SourceNotFoundError:
            mount = await self._load_direct(module_id, config)
            if mount is None:
                raise
            return mount
        raw = self._load_filesystem(module_id, module_name=package.name)
        if not raw:
            raise _ModuleDiscoveryError(
                f"Module '{module_id}' found at {module_path} but failed to load", reason_code="invalid_entry_point"
            )
        self._loaded_modules[module_id] = raw
        self._loaded_module_paths[module_id] = module_path.resolve()
        return _closure(module_id, raw, config)

    def _add_path(self, path: str) -> None:
        if path not in sys.path:
            sys.path.insert(0, path)
            self._added_paths.append(path)

    async def _load_direct(self, module_id: str, config: dict[str, Any] | None = None) -> Mount | None:
        for find in (self._load_entry_point, self._load_filesystem, self._load_built_in):
            raw = find(module_id)
            if raw:
                self._loaded_modules[module_id] = raw
                name = str(getattr(raw, "__module__", ""))
                if built_in_claim(module_id) is not None and not name.startswith("amplifier.modules."):
                    logger.info("module '%s': %s is used, not the built-in one", module_id, name)
                return _closure(module_id, raw, config)
        return None

    def _load_pinned(self, module_id: str, config: dict[str, Any] | None, pin: Pin) -> Mount:
        """The module of the distribution that a plan pins.

        Raises:
            ModuleLoadError: It does not provide the module, or the module cannot be imported.
        """
        mount, module = mount_of(find_pinned(module_id, installed_entry_points().get(module_id, ()), pin))
        _attach_ready(mount, module, module_id)
        return _closure(module_id, mount, config)

    def _load_built_in(self, module_id: str) -> Any:
        """The mount function of the built-in module of an id, unless a third-party one is installed and could not be loaded."""
        claim = built_in_claim(module_id)
        if claim is None or any(entry.name == module_id for entry in third_party_entries()):
            return None
        mount, module = mount_of(claim)
        _attach_ready(mount, module, module_id)
        return mount

    def _load_entry_point(self, module_id: str) -> Any:
        """The mount function of an installed distribution."""
        try:
            for entry in third_party_entries():
                if entry.name != module_id:
                    continue
                mount = entry.load()
                name = getattr(mount, "__module__", None)
                module = None
                if isinstance(name, str):
                    module = sys.modules.get(name)
                    if module is None:
                        with suppress(ImportError):
                            module = importlib.import_module(name)
                _attach_ready(mount, module, module_id)
                return mount
        except ModuleLoadError:
            raise
        except Exception:  # what is installed is third-party code
            logger.exception("Could not load '%s' via entry point", module_id)
        return None

    def _load_filesystem(self, module_id: str, module_name: str | None = None) -> Any:
        """The mount function of an importable package."""
        name = module_name or f"amplifier_module_{module_id.replace('-', '_')}"
        try:
            module = importlib.import_module(name)
        except Exception as exc:  # noqa: BLE001 — a package that fails to import is, as published, not there
            logger.debug("Could not load '%s' from filesystem: %s", module_id, exc)
            return None
        mount = getattr(module, "mount", None)
        if mount is not None:
            _attach_ready(mount, module, module_id)
        return mount

    # ── modules in other languages ──

    async def _load_foreign(self, module_path: Path, module_id: str, config: Any, coordinator: Any) -> Mount | None:
        """The mount function of a module that is not Python; None for one that is, or that cannot be recognized."""
        try:
            engine = importlib.import_module("amplifier_core._engine")  # tests put doubles there
            manifest = engine.resolve_module(str(module_path))
            transport = manifest.get("transport", "python")
            if transport == "wasm":
                return self._make_wasm_mount(module_path, coordinator)
            if transport == "grpc":
                return await self._make_grpc_mount(module_path, module_id, config, coordinator)
            if transport == "rust":
                return self._make_rust_sidecar_mount(module_path, module_id, manifest, coordinator)
        except FileNotFoundError:
            raise
        except Exception as exc:  # noqa: BLE001 — as published, Python is then tried
            logger.warning("resolve_module failed for '%s': %s, falling through to Python loader", module_id, exc)
        return None

    def _make_wasm_mount(self, module_path: Path, coordinator: Any) -> Mount:
        return _transports.wasm_mount(module_path)

    async def _make_grpc_mount(self, module_path: Path, module_id: str, config: Any, coordinator: Any) -> Mount:
        return _transports.grpc_mount(module_id)

    def _make_rust_sidecar_mount(self, module_path: Path, module_id: str, manifest: Any, coordinator: Any) -> Mount:
        return _transports.sidecar_mount(module_path, module_id, manifest)

    # ── what a module is ──

    def _get_module_metadata(self, module_id: str, module_path: Path) -> tuple[str, str]:
        """The type a module declares, or the one its name suggests, and the mount point of that type."""
        declared = None
        package = self._find_package_dir(module_id, module_path)
        if package is not None:
            root = str(module_path)
            added = root not in sys.path
            if added:
                sys.path.insert(0, root)
            try:
                declared = getattr(importlib.import_module(package.name), "__amplifier_module_type__", None)
            except Exception as exc:  # noqa: BLE001 — imports other people's code
                logger.debug("Could not inspect module '%s': %s", module_id, exc)
            finally:
                if added:
                    sys.path.remove(root)
        if not declared:
            return self._guess_from_naming(module_id)
        if not isinstance(declared, str) or declared not in TYPE_TO_MOUNT_POINT:
            raise ModuleValidationError(
                f"Module '{module_id}' has unknown type '{declared}'. Valid types: {list(TYPE_TO_MOUNT_POINT)}",
                reason_code="invalid_module_metadata",
            )
        return declared, TYPE_TO_MOUNT_POINT[declared]

    def _guess_from_naming(self, module_id: str) -> tuple[str, str]:
        lowered = module_id.lower()
        kind = next((kind for word, kind in _WORDS_OF_TYPES if word in lowered), "tool")
        return kind, TYPE_TO_MOUNT_POINT[kind]

    def _find_package_dir(self, module_id: str, module_path: Path) -> Path | None:
        """The package inside a module's directory."""
        if not module_path.exists():
            return None
        if (module_path / "__init__.py").exists():
            return module_path
        named = module_path / f"amplifier_module_{module_id.replace('-', '_')}"
        others = [item for item in module_path.iterdir() if item.name.startswith("amplifier_module_")]
        return next((item for item in (named, *others) if item.is_dir() and (item / "__init__.py").exists()), None)

    async def _validate_module(self, module_id: str, module_path: Path, config: dict[str, Any] | None = None) -> Path:
        """Check a module by the validator of its type, which mounts it once on a coordinator of its own.

        Raises:
            ModuleValidationError: It is not a module.
        """
        from . import validation  # noqa: PLC0415 — the validators need the test doubles, and they the coordinator

        module_type, _ = self._get_module_metadata(module_id, module_path)
        validator = getattr(validation, f"{module_type.title()}Validator", None)
        if validator is None:
            logger.warning("Unknown module type '%s' for '%s', skipping validation", module_type, module_id)
            return module_path
        package = self._find_package_dir(module_id, module_path)
        if package is None:
            raise ModuleValidationError(
                f"Module '{module_id}' has no valid Python package at {module_path}",
                reason_code="invalid_package_layout" if os.path.exists(module_path) else "missing_source",  # noqa: PTH110, ASYNC240 — one stat
            )
        result = await validator().validate(package, config=config)
        if not result.passed:
            details = "; ".join(f"{check.name}: {check.message}" for check in result.errors)
            entry = any(check.name in _ABOUT_THE_ENTRY for check in result.errors)
            raise ModuleValidationError(
                f"Module '{module_id}' failed validation: {result.summary()}. Errors: {details}",
                reason_code="invalid_entry_point" if entry else "validation_failed",
            )
        logger.info("[module:validated] %s - %s", module_id, result.summary())
        return package

    # ── by hand ──

    async def initialize(self, module: Any, coordinator: Any) -> Any:
        """Mount what `load` gave; errors are logged and raised."""
        try:
            return await module(coordinator)
        except Exception as exc:
            logger.error("Failed to initialize module: %s", exc)
            raise

    def cleanup(self) -> None:
        """Remove the sys.path entries of this loader."""
        while self._added_paths:
            with suppress(ValueError):
                sys.path.remove(self._added_paths.pop())

    def get_on_session_ready_queue(self) -> list[tuple[str, Callable[..., Any]]]:
        """The registered ``on_session_ready`` functions; a copy."""
        return list(self._on_session_ready_queue)

    def enqueue_on_session_ready(self, module_id: str, fn: Callable[..., Any]) -> None:
        """Have an async ``fn(coordinator)`` called when all modules are mounted."""
        self._on_session_ready_queue.append((module_id, fn))

    def clear_on_session_ready_queue(self) -> None:
        """Remove all registered functions."""
        self._on_session_ready_queue.clear()


async def _resolve(resolver: Any, module_id: str, hint: Any) -> Any:
    if hasattr(resolver, "async_resolve"):
        return await resolver.async_resolve(module_id, source_hint=hint, profile_hint=hint)
    return resolver.resolve(module_id, source_hint=hint, profile_hint=hint)


def _closure(module_id: str, raw: Any, config: dict[str, Any] | None) -> Mount:
    """A mount function with its configuration and the module's ``on_session_ready``."""

    async def mount(coordinator: Any) -> Any:
        return await mount_published(module_id, raw, coordinator, config or {})

    ready = getattr(raw, "__on_session_ready__", None)
    if ready:
        mount.__on_session_ready__ = ready  # type: ignore[attr-defined]  # the published place for it
    return mount


def _attach_ready(mount: Any, module: Any, module_id: str) -> None:
    """Remember a module's ``on_session_ready`` on its mount function."""
    function = getattr(module, "on_session_ready", None)
    if function is None:
        return
    if not inspect.iscoroutinefunction(function):
        logger.warning("Module '%s' defines on_session_ready() as sync — must be async. Skipping.", module_id)
        return
    with suppress(AttributeError, TypeError):  # not every callable takes attributes
        mount.__on_session_ready__ = (module_id, function)
