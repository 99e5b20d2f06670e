"""The one agent turn that all loops share: ask the model, run the tools it wants, until it answers in words."""

from ._loop import Turn
from ._options import TurnOptions, read_options
from ._orchestrator import TurnOrchestrator

__all__ = ["Turn", "TurnOptions", "TurnOrchestrator", "read_options"]
