"""Checking hook modules."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, ClassVar

from ._module import ModuleValidator
from .base import (  # noqa: F401 — where suites look for them
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    import_module_from_path,
)

__all__ = ["HookValidator"]


class HookValidator(ModuleValidator):
    """Is this a hook module? As published, one that registers nothing passes as well: it may do so later."""

    KIND: ClassVar[str] = "hook"
    POINT: ClassVar[str] = "hooks"
    CONTRACT: ClassVar[str] = "HookHandler"
    MEMBERS: ClassVar[tuple[str, ...]] = ("__call__",)

    def _check_mounted(self, result: ValidationResult, coordinator: Any, answer: Any) -> None:
        registry = coordinator.mount_points.get("hooks")
        if registry is not None and registry.list_handlers():
            result.note("protocol_compliance", True, "Hooks registered via coordinator.hooks.register()")
        elif callable(answer) and not inspect.isroutine(answer):
            result.note("protocol_compliance", True, "mount() returned a valid HookHandler instance")
            self._check_members(result, answer)
        elif registry is not None:
            result.note("protocol_compliance", True, "Hooks registered via coordinator.hooks")
        else:
            self._check_answer(result, answer)

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        call = getattr(instance, "__call__", None)  # noqa: B004 — its kind is needed, not whether it exists
        if not (asyncio.iscoroutinefunction(instance) or asyncio.iscoroutinefunction(call)):
            result.note("hook_call", False, "HookHandler.__call__() should be async")
            return
        count = len([name for name in inspect.signature(instance).parameters if name != "self"])
        message = "HookHandler.__call__() has correct async signature (event, data)"
        if count < 2:
            message = f"HookHandler.__call__() should accept (event, data), found {count} params"
        result.note("hook_call", count >= 2, message)

    _check_hook_methods = _check_members


def _implements_hook_handler_interface(obj: Any) -> bool:
    return callable(obj)
