"""The hook registry, as published modules import it."""

from amplifier.compat._sessions.hooks import HookRegistry
from amplifier.models import ContextInjection, HookResult

__all__ = ["ContextInjection", "HookRegistry", "HookResult"]
