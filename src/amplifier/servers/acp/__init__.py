"""The Agent Client Protocol, over which an editor uses an agent on standard input and output."""

# _connection  one client: JSON-RPC messages in both directions, and the standard streams
# _agent       the methods of the protocol, and their parameters
# _updates     events of a turn as notifications, and requests to the editor

from ._agent import serve
from ._connection import StandardStreams, taken_standard_streams

__all__ = ["StandardStreams", "serve", "taken_standard_streams"]
