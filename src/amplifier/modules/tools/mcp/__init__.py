"""tool-mcp: the tools of MCP servers, which run as child processes or answer over HTTP.

    _options              the configuration, also in the form of other hosts (``mcpServers``)
    _transports           messages over the standard streams of a process, or over streamable HTTP with OAuth logins
    _connection           one server: what it offers, without what is invalid; opened, watched, opened again after a crash
    _requests_from_server roots, sampling and elicitation
    _tools                the tools that sessions mount, and their results
    _mount                opens all servers side by side and shares them with child sessions

`_mount` and `_options` do not need the extra ``mcp``; `_mount` imports the rest in a worker thread.
"""

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
