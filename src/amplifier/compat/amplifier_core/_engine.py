"""Names of the native module that published code and its tests reach for; nothing here is native."""

import types
from typing import Any

from amplifier.compat._coordinator import ModuleCoordinator as RustCoordinator
from amplifier.compat._hooks import HookRegistry as RustHookRegistry
from amplifier.compat._session import AmplifierSession as RustSession
from amplifier.kernel import CancellationToken as RustCancellationToken

from . import capabilities, events
from .capabilities import *  # noqa: F403  # the constants by their own names
from .events import *  # noqa: F403  # the constants by their own names
from .utils.retry import RetryConfig, compute_delay

__version__ = "2.0.2"
RUST_AVAILABLE = True
RustUnregisterFn = types.FunctionType

_WORDS = (
    (("context length", "too many tokens", "maximum context"), "context_length"),
    (("rate limit", "too many requests", "429"), "rate_limit"),
    (("authentication", "api key", "unauthorized", "401"), "authentication"),
    (("not found", "404"), "not_found"),
    (("content filter", "safety", "blocked"), "content_filter"),
    (("timeout", "timed out"), "timeout"),
    (("unavailable", "overloaded", "503"), "provider_unavailable"),
)


class ProviderError:
    """What went wrong with a provider, as plain data; not an exception."""

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        model: str | None = None,
        retry_after: float | None = None,
        delay_multiplier: float | None = None,
        retryable: bool = False,
        error_type: str = "Other",
    ) -> None:
        self.message = message
        self.provider = provider
        self.model = model
        self.retry_after = retry_after
        self.delay_multiplier = delay_multiplier
        self.retryable = retryable
        self.error_type = error_type

    def __repr__(self) -> str:
        return f'ProviderError("{self.message}")'

    def __str__(self) -> str:
        return self.message


def classify_error_message(message: str) -> str:
    """The category an error's text belongs to, ``unknown`` if it names none."""
    text = message.lower()
    return next((category for words, category in _WORDS if any(word in text for word in words)), "unknown")


def resolve_module(path: str) -> dict[str, Any]:
    """What a module directory holds: always Python here; WebAssembly and sidecars need the published kernel."""
    return {"transport": "python", "path": str(path)}


__all__ = [  # noqa: PLE0604 — the constants by their own names
    *events.__all__,
    *capabilities.__all__,
    "RUST_AVAILABLE",
    "ProviderError",
    "RetryConfig",
    "RustCancellationToken",
    "RustCoordinator",
    "RustHookRegistry",
    "RustSession",
    "RustUnregisterFn",
    "__version__",
    "classify_error_message",
    "compute_delay",
    "resolve_module",
]
