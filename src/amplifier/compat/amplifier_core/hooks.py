"""The hook registry, as published modules import it."""

from amplifier.compat._sessions import HookRegistry
from amplifier.models import ContextInjection, HookResult

__all__ = ["ContextInjection", "HookRegistry", "HookResult"]
