"""Every error of the project, in one tree.

    AmplifierError
    ├── SessionError
    │   ├── SessionStateError (RuntimeError)      called at the wrong moment: not open, closed, wrong loop
    │   │   └── NoUnfinishedTurnError             there is no turn to resume
    │   └── SessionBusyError (RuntimeError)       a turn is already running in this session
    ├── ExecutionCancelled                        the turn was stopped through its cancellation token
    ├── ExecutionTimeout (TimeoutError)           the turn ran into its own deadline
    ├── DeadlineExceeded (TimeoutError)           code of a module overran the deadline it was given
    ├── HookRecursionError (RecursionError)       handlers emit events in a circle
    ├── ApprovalTimeoutError                      raised by approval systems that gave up waiting
    ├── PlanError (ValueError)                    the mount plan is wrong; carries every problem with its path
    ├── ModelError (ValueError)                   data does not fit a model; carries every problem with its path
    ├── ResultError (ValueError)                  the model's answer does not fit the type that was asked for
    ├── ExecutionDenied                           a hook denied the prompt or the model call of a turn
    ├── BudgetError                               a budget cannot be kept: unknown price, calls past it
    │   └── BudgetExceeded                        a limit of session.budget is used up
    ├── ContractError                             a module broke the contract of its kind
    ├── ContainedError                            third-party code raised what is not an Exception, such as SystemExit
    │   └── SpuriousCancellation                  it raised a cancellation although nothing was cancelled
    ├── MissingExtraError (ImportError)           an optional dependency is not installed
    ├── ModuleNotFoundError (ModuleNotFoundError) no module of that id anywhere we looked
    ├── ModuleLoadError                           found, but it could not be imported, classified or mounted
    │   └── ModuleConflictError                   two different sources claim one id or package name
    └── LLMError                                  what providers raise; fields state whether a retry may help
        ├── RateLimitError
        │   └── QuotaExceededError
        ├── AuthenticationError
        │   └── AccessDeniedError
        ├── ProviderUnavailableError
        │   └── NetworkError
        ├── LLMTimeoutError · StreamError
        ├── ContextLengthError · ContentFilterError · InvalidRequestError · NotFoundError
        ├── AbortError · ConfigurationError · InvalidToolCallError
        └── ReplayMismatchError                   provider-replay has no recording for a request
    MisspellingWarning                            a UserWarning: an unknown name that is nearly a known one

A message states what was found, what was expected and what to do; the same facts are in the error's fields.
"""

from __future__ import annotations

from ._base import (
    AmplifierError,
    MisspellingWarning,
)
from ._data import (
    ContainedError,
    ContractError,
    ModelError,
    PlanError,
    ResultError,
    SpuriousCancellation,
)
from ._data import (
    Problem as Problem,
)
from ._llm import (
    AbortError,
    AccessDeniedError,
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    InvalidToolCallError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
    ReplayMismatchError,
    StreamError,
)
from ._modules import (
    MissingExtraError,
    ModuleConflictError,
    ModuleLoadError,
    ModuleNotFoundError,
)
from ._session import (
    ApprovalTimeoutError,
    BudgetError,
    BudgetExceeded,
    DeadlineExceeded,
    ExecutionCancelled,
    ExecutionDenied,
    ExecutionTimeout,
    HookRecursionError,
    NoUnfinishedTurnError,
    SessionBusyError,
    SessionError,
    SessionStateError,
)

__all__ = [
    "AbortError",
    "AccessDeniedError",
    "AmplifierError",
    "ApprovalTimeoutError",
    "AuthenticationError",
    "BudgetError",
    "BudgetExceeded",
    "ConfigurationError",
    "ContainedError",
    "ContentFilterError",
    "ContextLengthError",
    "ContractError",
    "DeadlineExceeded",
    "ExecutionCancelled",
    "ExecutionDenied",
    "ExecutionTimeout",
    "HookRecursionError",
    "InvalidRequestError",
    "InvalidToolCallError",
    "LLMError",
    "LLMTimeoutError",
    "MissingExtraError",
    "MisspellingWarning",
    "ModelError",
    "ModuleConflictError",
    "ModuleLoadError",
    "ModuleNotFoundError",
    "NetworkError",
    "NoUnfinishedTurnError",
    "NotFoundError",
    "PlanError",
    "ProviderUnavailableError",
    "QuotaExceededError",
    "RateLimitError",
    "ReplayMismatchError",
    "ResultError",
    "SessionBusyError",
    "SessionError",
    "SessionStateError",
    "SpuriousCancellation",
    "StreamError",
]
