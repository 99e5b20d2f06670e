"""The published kernel's names. Once compat is installed, this is ``amplifier_core``."""

# The tree has the published file names, because code imports from them and tests patch them. The
# files are imported under the name ``amplifier_core`` only and refer to each other relatively.

# The package re-exports the names of its parts: the published ones and more.
# ruff: noqa: F401, F403

from . import capabilities, events, llm_errors
from .cancellation import CancellationState, CancellationToken
from .content_models import *
from .coordinator import ModuleCoordinator
from .hooks import HookRegistry
from .interfaces import *
from .llm_errors import *
from .loader import ModuleLoader, ModuleValidationError
from .message_models import *
from .models import *
from .session import AmplifierSession
from .testing import *
from .utils.retry import RetryConfig, classify_error_message, retry_with_backoff

__version__ = "2.0.2"

RUST_AVAILABLE = True
RustCancellationToken = CancellationToken
RustCoordinator = ModuleCoordinator
RustHookRegistry = HookRegistry
RustSession = AmplifierSession
