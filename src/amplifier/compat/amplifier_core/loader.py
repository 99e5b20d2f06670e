"""The loader in its published form: a façade over the native one, which finds, imports and classifies modules."""

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
    """The module was found, but it is not one."""

    def __init__(self, message: str, *, reason_code: str = "validation_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


class _NotFound(ValueError):
    """There is no such module."""

    reason_code = "missing_source"


def module_failure_reason(error: BaseException) -> str:
    """Why a module could not be loaded, in one of `MODULE_FAILURE_REASONS`; other errors are ``unknown``."""
    if isinstance(error, ModuleNotFoundError):
        return "missing_source"
    code = getattr(error, "reason_code", None)
    return code if isinstance(code, str) and code in MODULE_FAILURE_REASONS else "unknown"


class ModuleLoader:
    """Finds modules by id.

    Args:
        coordinator: Whose ``module-source-resolver`` is used.
        search_paths: Directories with ``amplifier-module-<id>`` directories in them.
    """

    def __init__(self, coordinator: Any = None, search_paths: list[Path] | None = None) -> None:
        self._native = NativeLoader(coordinator, search_paths)

    async def discover(self) -> list[ModuleInfo]:
        """List the third-party modules that are installed or in the search paths; nothing is imported."""
        return [found.info for found in self._native.catalogue() if not found.is_built_in]

    async def load(
        self,
        module_id: str,
        config: dict[str, Any] | None = None,
        source_hint: str | dict[str, Any] | None = None,
        coordinator: Any = None,
    ) -> Callable[[Any], Awaitable[Any]]:
        """Find and import a module.

        Args:
            module_id: What to load.
            config: What its mount will be called with.
            source_hint: Handed to the resolver, unless it pins an installed distribution or the built-in module.
            coordinator: Whose resolver to ask instead.

        Returns:
            ``await mount(coordinator)`` mounts the module and gives its cleanup.

        Raises:
            ValueError: There is no such module.
            ModuleValidationError: What was found is not a module.
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

    async def initialize(self, module: Any, coordinator: Any) -> Any:
        """Mount what `load` gave."""
        return await module(coordinator)

    def cleanup(self) -> None:
        """Remove the sys.path entries of this loader."""
        self._native.cleanup()
