"""The agent turn that all loops share."""

from ._options import TurnOptions, read_options
from ._turn import Turn, TurnOrchestrator, mount_loop

__all__ = ["Turn", "TurnOptions", "TurnOrchestrator", "mount_loop", "read_options"]
