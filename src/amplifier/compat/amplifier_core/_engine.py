"""Names of the native module that published code and its tests reach for; nothing here is native."""

from amplifier.kernel import AmplifierSession as RustSession
from amplifier.kernel import CancellationToken as RustCancellationToken
from amplifier.kernel import HookRegistry as RustHookRegistry
from amplifier.kernel import ModuleCoordinator as RustCoordinator

from .capabilities import *  # noqa: F403  # the constants by their own names
from .events import *  # noqa: F403  # the constants by their own names
from .utils.retry import RetryConfig, compute_delay

__version__ = "2.0.2"
RUST_AVAILABLE = True

__all__ = [  # names only
    "RUST_AVAILABLE",
    "RetryConfig",
    "RustCancellationToken",
    "RustCoordinator",
    "RustHookRegistry",
    "RustSession",
    "__version__",
    "compute_delay",
]
