"""What built-in tools share: one shape, checked input and config, and worker threads that can be told to stop."""

from ._config import count, flag, one_of, read_config, seconds, texts
from ._failure import ToolFailure, failure_from_os, shown
from ._inputs import check_input
from ._tool import BuiltinTool
from ._worker import Stop, Stopped, Workers

__all__ = [
    "BuiltinTool",
    "Stop",
    "Stopped",
    "ToolFailure",
    "Workers",
    "check_input",
    "count",
    "failure_from_os",
    "flag",
    "one_of",
    "read_config",
    "seconds",
    "shown",
    "texts",
]
