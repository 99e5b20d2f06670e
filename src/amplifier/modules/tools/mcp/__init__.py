"""tool-mcp: the tools of MCP servers, which run as child processes or answer over HTTP."""

from ..._shared.processes import ProcessTree, ServiceProcess
from ._mount import login_of, mount, on_session_ready
from ._options import read_mcp_options

__all__ = [
    "ProcessTree",
    "ServiceProcess",
    "login_of",
    "mount",
    "on_session_ready",
    "read_mcp_options",
]

__amplifier_module_type__ = "tool"
