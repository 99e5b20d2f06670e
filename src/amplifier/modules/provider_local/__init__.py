"""provider-local: a model file on this machine, run by a llama.cpp server that belongs to the session.

_options         the configuration: which file, how large a context
_server_process  the server's process: started by the first request, restarted if it died, ended with the session
_server_main     the program of that process
_chat_request    encodes a request as the server's JSON
_chat_response   decodes the server's events into chunks and a response
_error_mapping   maps failures to the error taxonomy
_provider        the provider
"""

from ._mount import mount

__all__ = ["mount"]

__amplifier_module_type__ = "provider"
