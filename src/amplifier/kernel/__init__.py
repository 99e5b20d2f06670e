"""The mechanism, no policy: sessions, coordinator, hooks, cancellation."""

from ._cancellation import CancellationState, CancellationToken
from ._cleanup import CleanupFailure
from ._coordinator import ModuleCoordinator
from ._hooks import HookRegistry
from ._opening import ModuleFailure
from ._session import AmplifierSession

__all__ = [
    "AmplifierSession",
    "CancellationState",
    "CancellationToken",
    "CleanupFailure",
    "HookRegistry",
    "ModuleCoordinator",
    "ModuleFailure",
]
