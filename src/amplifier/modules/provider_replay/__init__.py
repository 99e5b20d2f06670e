"""provider-replay: records the answers of a session's providers in a file, and gives them again without a network.

_options     the configuration
_scrubbing   no secret is written; texts that differ between machines are written as placeholders
_request     a request in the form that is compared: ids renumbered, secrets out
_cassette    the recordings in memory, and which of them answers a request
_file        the file: one JSON object per line, replaced atomically
_difference  the first difference between two requests, in words
_sharing     which sessions of this process share a file, and in which order they were opened
_providers   what is mounted: a provider that records another one, and one that replays
_mount       finds the cassette of the session tree, mounts and wraps the providers
"""

from ._mount import mount, on_session_ready

__all__ = ["mount", "on_session_ready"]

__amplifier_module_type__ = "provider"
