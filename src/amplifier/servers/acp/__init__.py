"""The Agent Client Protocol: an editor starts the agent as a program and talks to it over standard input and output.

_connection  one client: JSON-RPC messages, reading, writing, requests in both directions; standard input and output
_agent       the methods of the protocol, and their parameters
_updates     events of a turn as notifications, how tool calls are shown, what the editor is asked for
"""

from ._agent import serve
from ._connection import StandardStreams, taken_standard_streams

__all__ = ["StandardStreams", "serve", "taken_standard_streams"]
