"""The mechanism, no policy: sessions, coordinator, hooks, cancellation."""

from .coordinator.coordinator import ModuleCoordinator
from .hooks.registry import HookRegistry
from .runtime.cancellation import CancellationState, CancellationToken
from .runtime.cleanup import CleanupFailure
from .session.opening import ModuleFailure
from .session.session import AmplifierSession
from .session.stream import TextStream, TurnStream

__all__ = [
    "AmplifierSession",
    "CancellationState",
    "CancellationToken",
    "CleanupFailure",
    "HookRegistry",
    "ModuleCoordinator",
    "ModuleFailure",
    "TextStream",
    "TurnStream",
]
