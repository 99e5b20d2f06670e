"""tool-mcp: the tools of MCP servers, which run as child processes or answer over HTTP.

    _options              the configuration, also in the form of other hosts (``mcpServers``)
    _server_process       starts the process of a server and ends it with all it started
    _stdio_transport      messages over the standard streams of that process
    _http_transport       messages over streamable HTTP, with headers and OAuth
    _oauth                logs in to remote servers; tokens in files that only their owner can read
    _connection           one server: opened, watched, opened again after a crash
    _server_offer         what a server offers: its tools, resources and prompts
    _tool_list_filter     takes invalid tools out of a server's list
    _requests_from_server roots, sampling and elicitation
    _content              results of the protocol as results of tools
    _tools                the tools that sessions mount
    _tool_mounting        which tools a session mounts, and under which names
    _mount                opens all servers side by side and shares them with child sessions

`_mount` and `_options` do not need the extra ``mcp``; `_mount` imports the rest in a worker thread.
"""

from ._mount import mount, on_session_ready
from ._options import read_mcp_options

__all__ = ["mount", "on_session_ready", "read_mcp_options"]

__amplifier_module_type__ = "tool"
