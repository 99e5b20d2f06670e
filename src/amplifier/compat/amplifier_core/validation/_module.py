"""The course of every validation: import, find mount, look at it, call it, look at what it mounted."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from pathlib import Path
from typing import Any, ClassVar

from amplifier.compat._modules.adapting import mount_published

from .base import ValidationResult, check_on_session_ready, import_module_from_path

__all__ = ["ModuleValidator"]


class ModuleValidator:
    """What the validators of the five types have in common."""

    KIND: ClassVar[str]
    POINT: ClassVar[str]
    CONTRACT: ClassVar[str]
    MEMBERS: ClassVar[tuple[str, ...]]

    async def validate(
        self, module_path: str | Path, entry_point: str | None = None, config: dict[str, Any] | None = None
    ) -> ValidationResult:
        """Check one module.

        Args:
            module_path: A package directory, a file, or an importable name.
            entry_point: Not used.
            config: What its mount is called with.
        """
        result = ValidationResult(module_type=self.KIND, module_path=str(module_path))
        module = self._check_importable(result, module_path)
        mount = None if module is None else self._check_mount_exists(result, module)
        if mount is None:
            return result
        self._check_mount_signature(result, mount)
        ready = check_on_session_ready(module)
        if ready is not None:
            result.add(ready)
        await self._check_protocol_compliance(result, mount, config=config)
        return result

    def _check_importable(self, result: ValidationResult, module_path: str | Path) -> Any:
        path = Path(module_path)
        try:
            if not path.exists():
                module = importlib.import_module(str(module_path))
                result.note("module_importable", True, f"Module '{module_path}' imported successfully")
                return module
            if path.is_dir() and not (path / "__init__.py").exists():
                result.note("module_importable", False, f"No __init__.py found in {path}")
                return None
            module = import_module_from_path(path)
        except ImportError as exc:
            result.note("module_importable", False, f"Failed to import module: {exc}")
        except Exception as exc:  # noqa: BLE001 — the module is third-party code
            result.note("module_importable", False, f"Error loading module: {exc}")
        else:
            result.note("module_importable", True, f"Module loaded from {path}")
            return module
        return None

    def _check_mount_exists(self, result: ValidationResult, module: Any) -> Any:
        mount = getattr(module, "mount", None)
        if mount is None:
            result.note("mount_exists", False, "No mount() function found in module")
        elif not callable(mount):
            result.note("mount_exists", False, "mount is not callable")
        else:
            result.note("mount_exists", True, "mount() function found")
            return mount
        return None

    def _check_mount_signature(self, result: ValidationResult, mount_fn: Any) -> None:
        count = len(inspect.signature(mount_fn).parameters)
        if count < 2:
            message = f"mount() should have at least 2 parameters (coordinator, config), found {count}"
            result.note("mount_signature", False, message)
        elif asyncio.iscoroutinefunction(mount_fn):
            result.note("mount_signature", True, "mount() is async with correct signature")
        else:
            result.note("mount_signature", False, "mount() should be async (async def mount(...))")

    async def _check_protocol_compliance(
        self, result: ValidationResult, mount_fn: Any, config: dict[str, Any] | None = None
    ) -> None:
        """Mount the module on a coordinator of its own, check what is mounted, and clean up."""
        from ..testing import MockCoordinator  # noqa: PLC0415 — tests patch the name there

        coordinator = MockCoordinator()
        package = str(getattr(mount_fn, "__module__", "")).partition(".")[0]
        module_id = package.removeprefix("amplifier_module_").replace("_", "-")
        answer = None
        try:
            answer = await mount_published(module_id, mount_fn, coordinator, config if config is not None else {})
            self._check_mounted(result, coordinator, answer)
        except Exception as exc:  # noqa: BLE001 — the module is third-party code
            result.note("protocol_compliance", False, f"Error during protocol compliance check: {exc}")
        finally:
            for cleanup in (answer, *reversed(coordinator._cleanup_fns)):
                await _clean_up(cleanup)
            await coordinator.end_asyncio_island()

    def _check_mounted(self, result: ValidationResult, coordinator: Any, answer: Any) -> None:
        mounted = coordinator.mount_points.get(self.POINT)
        found: dict[str, Any] = mounted if isinstance(mounted, dict) else {} if mounted is None else {"": mounted}
        if not found:
            self._check_answer(result, answer)
        for name, instance in found.items():
            what = f"{self.KIND.title()} '{name}'" if name else f"Mounted {self.KIND}"
            if self._implements(instance):
                named = what if name else self.KIND.title()
                result.note("protocol_compliance", True, f"{named} implements {self.CONTRACT} interface")
                self._check_members(result, instance)
            else:
                missing = ", ".join(self.MEMBERS)
                message = f"{what} does not implement {self.CONTRACT} interface (missing one of {missing})"
                result.note("protocol_compliance", False, message)

    def _check_answer(self, result: ValidationResult, answer: Any) -> None:
        """Nothing was mounted: perhaps mount gave the instance back, or only its cleanup."""
        if answer is not None and self._implements(answer):
            result.note("protocol_compliance", True, f"mount() returned a valid {self.CONTRACT} instance")
            self._check_members(result, answer)
        elif callable(answer):
            message = f"mount() returned a cleanup callable (no {self.KIND} mounted yet - may be conditional)"
            result.note("protocol_compliance", True, message)
            result.checks[-1].severity = "warning"
        else:
            article = "an" if self.CONTRACT[0] in "AEIOU" else "a"
            message = f"No {self.KIND} was mounted and mount() did not return {article} {self.CONTRACT} instance"
            result.note("protocol_compliance", False, message)

    def _implements(self, instance: Any) -> bool:
        return all(hasattr(instance, member) for member in self.MEMBERS)

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        raise NotImplementedError

    # ── parts of the members' checks ──

    def _check_text(self, result: ValidationResult, instance: Any, attribute: str, *, empty: Any = "error") -> None:
        check = f"{self.KIND}_{attribute}"
        try:
            value = getattr(instance, attribute)
        except Exception as exc:  # noqa: BLE001 — the module is third-party code
            result.note(check, False, f"Error accessing {self.CONTRACT}.{attribute}: {exc}")
            return
        if isinstance(value, str) and value:
            result.note(check, True, f"{self.CONTRACT} has {attribute}: '{value:.40}'")
        else:
            message = f"{self.CONTRACT}.{attribute} should be a non-empty string"
            result.note(check, False, message, failing=empty)

    def _check_async(
        self, result: ValidationResult, instance: Any, method: str, least: int = 0, expected: str = ""
    ) -> None:
        check = f"{self.KIND}_{method}"
        function = getattr(instance, method, None)
        if function is None:
            result.note(check, False, f"{self.CONTRACT} missing {method}() method")
        elif not asyncio.iscoroutinefunction(function):
            result.note(check, False, f"{self.CONTRACT}.{method}() should be async")
        else:
            count = len([name for name in inspect.signature(function).parameters if name != "self"])
            if count >= least:
                result.note(check, True, f"{self.CONTRACT}.{method}() has correct async signature")
            else:
                message = f"{self.CONTRACT}.{method}() should accept ({expected}), found {count} params"
                result.note(check, False, message)

    def _check_callable(self, result: ValidationResult, instance: Any, method: str) -> bool:
        check = f"{self.KIND}_{method}"
        function = getattr(instance, method, None)
        if function is None:
            return result.note(check, False, f"{self.CONTRACT} missing {method}() method")
        if not callable(function):
            return result.note(check, False, f"{self.CONTRACT}.{method} is not callable")
        return True


async def _clean_up(cleanup: Any) -> None:
    """Close what a validated module opened; errors of that are not part of the validation."""
    if not callable(cleanup):
        return
    try:
        answer = cleanup()
        if inspect.isawaitable(answer):
            await answer
    except Exception:  # noqa: BLE001 — see above
        pass
