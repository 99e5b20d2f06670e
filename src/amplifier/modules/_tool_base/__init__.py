"""What built-in tools share: a base class, checked input, and worker threads that can be asked to stop."""

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
    "failure_from_os",
    "poll_until",
    "shown",
]
