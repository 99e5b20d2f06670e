"""provider-anthropic: Claude models through Anthropic's SDK.

`_encode` writes requests, `_decode` reads answers, `_models` knows the models, `_options` the config; what all providers share
is in `_provider`.
"""

from ._mount import mount

__all__ = ["mount"]

__amplifier_module_type__ = "provider"
