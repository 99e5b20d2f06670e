"""Checking modules and mount plans, as published modules and applications import it. Needs no pytest."""

from .base import ValidationCheck, ValidationResult
from .context import ContextValidator
from .hook import HookValidator
from .mount_plan import MountPlanValidationResult, MountPlanValidator
from .orchestrator import OrchestratorValidator
from .provider import ProviderValidator
from .tool import ToolValidator

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
