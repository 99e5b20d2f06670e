"""provider-local: a model file on this machine, run by a llama.cpp server that this session owns.

_options        the plan's part: which file, how large a context
_server         the server's process: started by the first request, restarted if it died, gone with the session
_server_main   the program of that process
_encode         a request as the server's JSON, pure
_decode         the server's events as chunks and a response, pure
_failures       what went wrong, as an error of the taxonomy
_provider       the provider itself
"""

from ._mount import mount

__all__ = ["mount"]

__amplifier_module_type__ = "provider"
