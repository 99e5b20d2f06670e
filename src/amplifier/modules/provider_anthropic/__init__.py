"""provider-anthropic: Claude models through Anthropic's SDK.

`_messages_api` encodes requests, `_messages_api_reader` reads responses, `_model_catalogue` describes the models; code shared
by all providers is in `_llm_provider`.
"""

from ._mount import mount

__all__ = ["mount"]

__amplifier_module_type__ = "provider"
