"""provider-local: a model file on this machine; see `_provider`."""

from ._provider import mount

__all__ = ["mount"]

__amplifier_module_type__ = "provider"
