"""Hooks, as published modules import them."""

from amplifier.kernel import HookRegistry
from amplifier.models import ContextInjection, HookResult

__all__ = ["ContextInjection", "HookRegistry", "HookResult"]
