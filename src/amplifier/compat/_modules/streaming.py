"""Published loops and providers that stream.

No published provider streams. The published streaming loop has a path for one that does, and that path reads text only: its
``_has_pending_tools`` is a stub that returns False, so the tool calls of an answer would be lost silently. Where there are tools,
such a loop therefore gets our providers without their ``stream`` and calls ``complete``, as it does with published ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from .asyncio_use import is_published

logger = logging.getLogger("amplifier_core.session")

_STUBS: Final = ("_has_pending_tools", "_process_tools")


def providers_for(orchestrator: Any, providers: Any, tools: Any) -> Any:
    """The providers to call an orchestrator with: the same ones, unless it would lose the tool calls of their streams."""
    if not tools or not isinstance(providers, Mapping) or not all(hasattr(orchestrator, name) for name in _STUBS):
        return providers
    hidden = [name for name, provider in providers.items() if _streams_natively(provider)]
    if not hidden:
        return providers
    logger.info(
        "%s does not read tool calls from streams: it gets %s without stream()", orchestrator, ", ".join(hidden)
    )
    return {name: _WholeAnswers(provider) if name in hidden else provider for name, provider in providers.items()}


def _streams_natively(provider: Any) -> bool:
    module = type(getattr(provider, "__wrapped__", provider)).__module__  # a budget wraps providers
    return hasattr(provider, "stream") and not is_published(module)


class _WholeAnswers:
    """A provider without its ``stream``."""

    __slots__ = ("_provider",)

    def __init__(self, provider: Any) -> None:
        object.__setattr__(self, "_provider", provider)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            raise AttributeError(f"{self._provider!r} is used without stream() by this loop", name=name, obj=self)
        return getattr(self._provider, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._provider, name, value)

    def __repr__(self) -> str:
        return repr(self._provider)
