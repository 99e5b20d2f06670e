"""What built-in tools share: a base class, checked input, and worker threads that can be asked to stop."""

from ._config import count, flag, one_of, read_config, seconds, texts
from .failure import ToolFailure, failure_from_os, shown
from .input_schema import check_input
from .tool import BuiltinTool
from .worker_threads import Stop, Stopped, Workers, poll_until

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
    "poll_until",
    "read_config",
    "seconds",
    "shown",
    "texts",
]
