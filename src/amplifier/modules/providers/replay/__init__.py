"""provider-replay: records the answers of a session's providers in a file, and gives them again without a network.

`_cassette` has the file, its recordings, what of two requests is compared, and the sessions of this process that share it; `_providers`
what is mounted: a provider that records another one, and one that replays.
"""

from ._providers import mount, on_session_ready

__all__ = ["mount", "on_session_ready"]

__amplifier_module_type__ = "provider"
