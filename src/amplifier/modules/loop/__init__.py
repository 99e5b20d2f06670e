"""The one agent turn that all loops share: call the model, run its tools, repeat until it answers without tool calls."""

from ._options import TurnOptions, read_options
from ._orchestrator import TurnOrchestrator
from ._turn import Turn

__all__ = ["Turn", "TurnOptions", "TurnOrchestrator", "read_options"]
