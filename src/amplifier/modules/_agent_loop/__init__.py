"""The one agent turn that all loops share: ask the model, run the tools it wants, until it answers in words."""

from .options import TurnOptions, read_options
from .orchestrator import TurnOrchestrator
from .turn import Turn

__all__ = ["Turn", "TurnOptions", "TurnOrchestrator", "read_options"]
