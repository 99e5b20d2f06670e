"""The one agent turn that all loops share: ask the model, run the tools it wants, until it answers in words."""

from ._loop import Turn
from ._options import TurnOptions, read_options

__all__ = ["Turn", "TurnOptions", "read_options"]
