"""Checking mount plans before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .base import Checks, ValidationCheck

__all__ = ["MountPlanValidationResult", "MountPlanValidator"]


_SPEC = "{'module': 'module-name', 'source': '...', 'config': {...}}"


@dataclass
class MountPlanValidationResult(Checks):
    """All checks of one plan."""

    checks: list[ValidationCheck] = field(default_factory=list)

    def format_errors(self) -> str:
        """The errors as a numbered list."""
        if not self.errors:
            return "No errors"
        lines = [f"  {number}. [{error.name}] {error.message}" for number, error in enumerate(self.errors, 1)]
        return "\n".join(["Mount Plan Validation Failed:", "", *lines, "", f"Total: {len(self.errors)} error(s)"])


class MountPlanValidator:
    """Is this dict a mount plan? Whether its modules exist is another question."""

    REQUIRED_SECTIONS: ClassVar[set[str]] = {"session"}
    OPTIONAL_SECTIONS: ClassVar[set[str]] = {"providers", "tools", "hooks", "agents"}
    REQUIRED_SESSION_FIELDS: ClassVar[set[str]] = {"orchestrator", "context"}
    REQUIRED_MODULE_SPEC_FIELDS: ClassVar[set[str]] = {"module"}

    def validate(self, mount_plan: Any) -> MountPlanValidationResult:
        """Check a plan."""
        result = MountPlanValidationResult()
        if not isinstance(mount_plan, dict):
            result.note("root_type", False, f"Mount plan must be a dict, got {type(mount_plan).__name__}")
            return result
        result.note("root_type", True, "Mount plan is a dict")
        if result.note("session_present", "session" in mount_plan, _session_words("session" in mount_plan)):
            self._check_session(result, mount_plan["session"])
        unknown = set(mount_plan) - self.REQUIRED_SECTIONS - self.OPTIONAL_SECTIONS
        if unknown:
            message = f"Unknown sections will be ignored: {sorted(unknown, key=str)}"
            result.note("unknown_sections", False, message, failing="warning")
        for section in ("providers", "tools", "hooks"):
            if section in mount_plan:
                self._check_section(result, section, mount_plan[section])
        return result

    def _check_session(self, result: MountPlanValidationResult, session: Any) -> None:
        if not isinstance(session, dict):
            result.note("session_type", False, f"Session section must be a dict, got {type(session).__name__}")
            return
        for name in ("orchestrator", "context"):
            if name in session:
                self._check_spec(result, f"session.{name}", session[name])
            else:
                message = f"Session section missing required '{name}' field"
                result.note(f"session_{name}_present", False, message)

    def _check_section(self, result: MountPlanValidationResult, section: str, specs: Any) -> None:
        if not isinstance(specs, list):
            message = f"'{section}' section must be a list, got {type(specs).__name__}"
            result.note(f"{section}_type", False, message)
        elif not specs:
            result.note(f"{section}_empty", True, f"'{section}' section is empty")
        else:
            for index, spec in enumerate(specs):
                self._check_spec(result, f"{section}[{index}]", spec)

    def _check_spec(self, result: MountPlanValidationResult, path: str, spec: Any) -> None:
        if not isinstance(spec, dict):
            result.note(f"{path}_type", False, f"Module spec at {path} must be a dict, got {type(spec).__name__}")
            return
        if "module" not in spec:
            message = f"Module spec at {path} missing required 'module' field.\n  Got: {spec}\n  Expected: {_SPEC}"
            result.note(f"{path}_module_required", False, message)
        elif not isinstance(spec["module"], str):
            message = f"Module path at {path} must be a string, got {type(spec['module']).__name__}"
            result.note(f"{path}_module_type", False, message)
        elif not spec["module"]:
            result.note(f"{path}_module_empty", False, f"Module path at {path} cannot be empty")
        else:
            result.note(f"{path}_module_valid", True, f"Module path '{spec['module']}' at {path} is valid")
        if "config" in spec and not isinstance(spec["config"], dict):
            message = f"Config at {path} must be a dict, got {type(spec['config']).__name__}"
            result.note(f"{path}_config_type", False, message)
        if "source" in spec and not isinstance(spec["source"], str):
            message = f"Source at {path} must be a string, got {type(spec['source']).__name__}"
            result.note(f"{path}_source_type", False, message)


def _session_words(present: bool) -> str:
    return "Session section present" if present else "Mount plan missing required 'session' section"
