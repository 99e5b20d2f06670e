"""Behavioural suites for a module's tests to inherit from. They need pytest."""

from .test_context import ContextBehaviorTests
from .test_hook import HookBehaviorTests
from .test_orchestrator import OrchestratorBehaviorTests
from .test_provider import ProviderBehaviorTests
from .test_tool import ToolBehaviorTests

__all__ = [
    "ContextBehaviorTests",
    "HookBehaviorTests",
    "OrchestratorBehaviorTests",
    "ProviderBehaviorTests",
    "ToolBehaviorTests",
]
