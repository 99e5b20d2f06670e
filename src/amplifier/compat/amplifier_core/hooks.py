"""The hook registry, under its published address."""

from amplifier.compat._sessions import HookRegistry
from amplifier.models import ContextInjection, HookResult

__all__ = ["ContextInjection", "HookRegistry", "HookResult"]
