"""The published module loader, as a façade over the native one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from amplifier.errors import ModuleLoadError, ModuleNotFoundError
from amplifier.loading import ModuleLoader as NativeLoader

from .models import ModuleInfo

__all__ = [
    "MODULE_FAILURE_REASONS",
    "TYPE_TO_MOUNT_POINT",
    "ModuleLoader",
    "ModuleValidationError",
    "module_failure_reason",
]

logger: logging.Logger = logging.getLogger(__name__)

TYPE_TO_MOUNT_POINT = dict(NativeLoader.TYPE_TO_MOUNT_POINT)

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


class ModuleValidationError(Exception):
    """The module was found but isn't valid."""

    def __init__(self, message: str, *, reason_code: str = "validation_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


class _NotFound(ValueError):
    """There is no such module."""

    reason_code = "missing_source"


def module_failure_reason(error: BaseException) -> str:
    """Return the reason of a failed load, one of `MODULE_FAILURE_REASONS`."""
    if isinstance(error, ModuleNotFoundError):
        return "missing_source"
    code = getattr(error, "reason_code", None)
    return code if isinstance(code, str) and code in MODULE_FAILURE_REASONS else "unknown"


class ModuleLoader:
    """Finds modules by id.

    Args:
        coordinator: The coordinator with the ``module-source-resolver``.
        search_paths: Directories that hold ``amplifier-module-<id>`` directories.
    """

    def __init__(self, coordinator: Any = None, search_paths: list[Path] | None = None) -> None:
        self._native = NativeLoader(coordinator, search_paths)

    async def discover(self) -> list[ModuleInfo]:
        """List the third-party modules that are installed or on the search paths.

        Nothing is imported.
        """
        return [module.info for module in self._native.catalogue() if not module.is_built_in]

    async def load(
        self,
        module_id: str,
        config: dict[str, Any] | None = None,
        source_hint: str | dict[str, Any] | None = None,
        coordinator: Any = None,
    ) -> Callable[[Any], Awaitable[Any]]:
        """Find and import a module.

        Args:
            module_id: The id of the module.
            config: The config with which it is mounted.
            source_hint: Passed to the resolver, unless it pins an installed distribution or the
                built-in module.
            coordinator: The coordinator with the resolver, instead of the loader's.

        Returns:
            A function. ``await mount(coordinator)`` mounts the module and returns its cleanup.

        Raises:
            ValueError: There is no such module.
            ModuleValidationError: The module was found but isn't valid.
        """
        try:
            return await self._native.load(module_id, config, source_hint, coordinator=coordinator)
        except ModuleNotFoundError as exc:
            logger.error("Failed to load module '%s': %s", module_id, exc)
            raise _NotFound(
                f"Module '{module_id}' not found via entry points or filesystem: {exc}"
            ) from exc
        except ModuleLoadError as exc:
            logger.error("Failed to load module '%s': %s", module_id, exc)
            raise ModuleValidationError(
                f"Module '{module_id}' cannot be loaded: {exc}", reason_code=exc.reason_code
            ) from exc

    async def initialize(
        self, module: Callable[[object], Awaitable[object]], coordinator: object
    ) -> object:
        """Mount a module that was loaded with `load`."""
        return await module(coordinator)

    def cleanup(self) -> None:
        """Remove the sys.path entries of this loader."""
        self._native.cleanup()
