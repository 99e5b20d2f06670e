"""The published checks of modules and mount plans. ``amplifier module validate`` checks more."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from amplifier.errors import PlanError
from amplifier.plan import parse_plan

from ..models import ProviderInfo
from ..testing import MockCoordinator

__all__ = [
    "ContextValidator",
    "HookValidator",
    "MountPlanValidationResult",
    "MountPlanValidator",
    "OrchestratorValidator",
    "ProviderValidator",
    "ToolValidator",
    "ValidationCheck",
    "ValidationResult",
]


@dataclass
class ValidationCheck:
    """The result of one check."""

    name: str
    passed: bool
    message: str
    severity: Literal["error", "warning", "info"]


class _Checks:
    """A list of checks and its summary."""

    checks: list[ValidationCheck]

    @property
    def passed(self) -> bool:
        """True if no check with the severity of an error failed."""
        return not self.errors

    @property
    def errors(self) -> list[ValidationCheck]:
        """The failed checks with the severity of an error."""
        return [check for check in self.checks if check.severity == "error" and not check.passed]

    @property
    def warnings(self) -> list[ValidationCheck]:
        """The failed checks with the severity of a warning."""
        return [check for check in self.checks if check.severity == "warning" and not check.passed]

    def add(self, check: ValidationCheck) -> None:
        """Add a check."""
        self.checks.append(check)

    def note(self, name: str, problem: str | None, success: str) -> bool:
        """Add a check, which passed if there is no problem. Return whether it passed."""
        passed = problem is None
        self.add(ValidationCheck(name, passed, problem or success, "info" if passed else "error"))
        return passed

    def summary(self) -> str:
        """Return the summary of all checks in one line."""
        count = sum(check.passed for check in self.checks)
        return (
            f"{'PASSED' if self.passed else 'FAILED'}: {count}/{len(self.checks)} checks passed "
            f"({len(self.errors)} errors, {len(self.warnings)} warnings)"
        )


@dataclass
class ValidationResult(_Checks):
    """All checks of one module."""

    module_type: str
    module_path: str
    checks: list[ValidationCheck] = field(default_factory=list)


# ── modules ──────────────────────────────────────────────────────────────────────────────────────


class _ModuleValidator:
    """The base of the validators. It mounts a module on a fresh coordinator and checks the result.

    Attributes:
        KIND: The type of the module.
        POINT: Its mount point.
        TEXTS: The names of attributes that hold non-empty text.
        ASYNC: The names of async methods, each with the number of arguments that it must take.
        PLAIN: The names of sync methods.
    """

    KIND: ClassVar[str]
    POINT: ClassVar[str]
    TEXTS: ClassVar[tuple[str, ...]] = ()
    ASYNC: ClassVar[dict[str, int]] = {}
    PLAIN: ClassVar[tuple[str, ...]] = ()

    async def validate(
        self,
        module_path: str | Path,
        entry_point: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> ValidationResult:
        """Check one module.

        Args:
            module_path: A package directory, a file, or an importable name.
            entry_point: Ignored.
            config: The config with which it is mounted.
        """
        result = ValidationResult(module_type=self.KIND, module_path=str(module_path))
        try:
            module = _import(module_path)
        # The module is third-party code.
        except Exception as exc:  # noqa: BLE001
            result.note("module_importable", f"Failed to import module: {exc}", "")
            return result
        result.note("module_importable", None, f"Module loaded from {module_path}")
        mount = getattr(module, "mount", None)
        problem = (
            None if callable(mount) else f"No mount() function found in module: it is {mount!r}"
        )
        if not result.note("mount_exists", problem, "mount() function found") or mount is None:
            return result
        problem = _problem_of(mount, 2, "coordinator, config")
        result.note(
            "mount_signature",
            problem and f"mount() {problem}",
            "mount() is async with correct signature",
        )
        ready = getattr(module, "on_session_ready", None)
        if ready is not None and (problem := _problem_of(ready, 1, "coordinator")):
            result.note("on_session_ready_async", f"on_session_ready() {problem}", "")
        await self._check_mounted(result, mount, config or {})
        return result

    async def _check_mounted(
        self, result: ValidationResult, mount: Callable[..., object], config: dict[str, Any]
    ) -> None:
        """Mount the module on a fresh coordinator, check the mounted objects, and clean up."""
        coordinator = MockCoordinator()
        try:
            answer = mount(coordinator, config)
            answer = await answer if inspect.isawaitable(answer) else answer
            coordinator.register_cleanup(answer)
            self._check_instances(result, coordinator, answer)
        # The module is third-party code.
        except Exception as exc:  # noqa: BLE001
            result.note("protocol_compliance", f"Error during protocol compliance check: {exc}", "")
        finally:
            await coordinator.cleanup()

    def _check_instances(
        self, result: ValidationResult, coordinator: MockCoordinator, answer: object
    ) -> None:
        mounted = coordinator.mount_points.get(self.POINT)
        instances = [] if mounted is None else [mounted]
        if isinstance(mounted, dict):
            instances = list(mounted.values())
        if not instances and answer is not None and not self._missing(answer):
            instances = [answer]
        for instance in instances:
            missing, name = self._missing(instance), type(instance).__name__
            article = "an" if self.KIND == "orchestrator" else "a"
            problem = None
            if missing:
                problem = f"{name} is not {article} {self.KIND}: it has no {missing[0]}"
            success = f"{name} is {article} {self.KIND}"
            if result.note("protocol_compliance", problem, success):
                self._check_members(result, instance)
        if not instances and callable(answer):
            message = (
                f"mount() returned a cleanup callable (no {self.KIND} mounted yet - may be "
                "conditional)"
            )
            result.add(ValidationCheck("protocol_compliance", True, message, "warning"))
        elif not instances:
            result.note(
                "protocol_compliance",
                f"No {self.KIND} was mounted and mount() did not return one",
                "",
            )

    def _missing(self, instance: object) -> list[str]:
        return [
            name for name in (*self.TEXTS, *self.ASYNC, *self.PLAIN) if not hasattr(instance, name)
        ]

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        for name in self.TEXTS:
            value = getattr(instance, name)
            problem = (
                None if isinstance(value, str) and value else f"{name} should be a non-empty string"
            )
            result.note(f"{self.KIND}_{name}", problem, f"{name} is {value!r:.40}")
        for name, minimum in self.ASYNC.items():
            problem = _problem_of(getattr(instance, name), minimum, f"{minimum} arguments")
            result.note(
                f"{self.KIND}_{name}",
                problem and f"{name}() {problem}",
                f"{name}() has correct signature",
            )
        for name in self.PLAIN:
            problem = None if callable(getattr(instance, name)) else f"{name} is not callable"
            result.note(f"{self.KIND}_{name}", problem, f"{name}() exists and is callable")


def _problem_of(function: Callable[..., object], minimum: int, expected: str) -> str | None:
    """Return the problem of a function that must be async and take some arguments, or None."""
    if not inspect.iscoroutinefunction(function):
        return "should be async"
    count = len([name for name in inspect.signature(function).parameters if name != "self"])
    return None if count >= minimum else f"should accept ({expected}), found {count} params"


def _import(module_path: str | Path) -> ModuleType:
    """Import a package directory, a file or a name under its name at run time.

    Raises:
        ImportError: Another source already holds that name, or there is none.
    """
    path = Path(module_path)
    if not path.exists():
        return importlib.import_module(str(module_path))
    source = path / "__init__.py" if path.is_dir() else path
    if not source.exists():
        raise ImportError(f"No __init__.py found in {path}")
    name = path.name if path.is_dir() else path.stem
    sys.path.insert(0, str(path.parent))
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(name)
    finally:
        sys.path.remove(str(path.parent))
    if Path(str(getattr(module, "__file__", None))).resolve() != source.resolve():
        raise ImportError(
            f"Refusing to import '{name}' from {source}: it is already loaded from "
            f"{module.__file__}"
        )
    return module


class ProviderValidator(_ModuleValidator):
    """Checks that a module is a provider."""

    KIND: ClassVar[str] = "provider"
    POINT: ClassVar[str] = "providers"
    TEXTS: ClassVar[tuple[str, ...]] = ("name",)
    ASYNC: ClassVar[dict[str, int]] = {"list_models": 0, "complete": 1}
    PLAIN: ClassVar[tuple[str, ...]] = ("get_info", "parse_tool_calls")

    def _check_members(self, result: ValidationResult, instance: Any) -> None:
        super()._check_members(result, instance)
        info = instance.get_info()
        problem = None
        if not isinstance(info, ProviderInfo):
            problem = f"get_info() should return ProviderInfo, got {info!r:.80}"
        result.note("provider_info", problem, "get_info() returns ProviderInfo")


class ToolValidator(_ModuleValidator):
    """Checks that a module is a tool."""

    KIND: ClassVar[str] = "tool"
    POINT: ClassVar[str] = "tools"
    TEXTS: ClassVar[tuple[str, ...]] = ("name", "description")
    ASYNC: ClassVar[dict[str, int]] = {"execute": 1}


class OrchestratorValidator(_ModuleValidator):
    """Checks that a module is an orchestrator."""

    KIND: ClassVar[str] = "orchestrator"
    POINT: ClassVar[str] = "orchestrator"
    ASYNC: ClassVar[dict[str, int]] = {"execute": 5}


class ContextValidator(_ModuleValidator):
    """Checks that a module is a context manager."""

    KIND: ClassVar[str] = "context"
    POINT: ClassVar[str] = "context"
    ASYNC: ClassVar[dict[str, int]] = {
        "add_message": 1,
        "get_messages_for_request": 0,
        "get_messages": 0,
        "set_messages": 1,
        "clear": 0,
    }


class HookValidator(_ModuleValidator):
    """Checks that a module is a hook module.

    As in the published kernel, a module that registers nothing passes, because it may do so later.
    """

    KIND: ClassVar[str] = "hook"
    POINT: ClassVar[str] = "hooks"

    def _check_instances(
        self, result: ValidationResult, coordinator: MockCoordinator, answer: object
    ) -> None:
        count = sum(map(len, coordinator.hooks.list_handlers().values()))
        result.note(
            "protocol_compliance",
            None,
            f"{count} handlers registered via coordinator.hooks.register()",
        )


# ── mount plans ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class MountPlanValidationResult(_Checks):
    """All checks of one plan."""

    checks: list[ValidationCheck] = field(default_factory=list)

    def format_errors(self) -> str:
        """Return the errors as a numbered list."""
        if not self.errors:
            return "No errors"
        lines = [
            f"  {number}. [{error.name}] {error.message}"
            for number, error in enumerate(self.errors, 1)
        ]
        return "\n".join(
            ["Mount Plan Validation Failed:", "", *lines, "", f"Total: {len(self.errors)} error(s)"]
        )


class MountPlanValidator:
    """Checks that a dict is a mount plan, without looking for the modules."""

    def validate(self, mount_plan: Any) -> MountPlanValidationResult:
        """Check a plan, as a session does."""
        result = MountPlanValidationResult()
        try:
            plan = parse_plan(mount_plan)
        except PlanError as exc:
            for path, problem in exc.problems:
                result.note(path, f"{problem} (at {path})", "")
            return result
        result.note("plan", None, "Mount plan is valid")
        for warning in plan.warnings:
            result.add(ValidationCheck("plan", False, warning, "warning"))
        return result
