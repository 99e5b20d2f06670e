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
    ├── NoOneToAskError                           raised by approval systems that have no one to ask
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
    ├── OpeningErrors (ExceptionGroup)            several modules kept a session from opening
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

import builtins
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import partial

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
    "NoOneToAskError",
    "NoUnfinishedTurnError",
    "NotFoundError",
    "OpeningErrors",
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

Problem = tuple[str, str]
"""Where (a path such as ``content[2].text`` or ``$.session.context``) and what is wrong there."""


class AmplifierError(Exception):
    """Base of everything this project raises on purpose."""


class MisspellingWarning(UserWarning):
    """A name that is not known but nearly is: a handler for ``tool:per``, ``ToolResult(sucess=False)``.

    Such a name is allowed (events may have any name, models ignore or keep keywords they do not know), so nothing fails; the
    handler is never called and the value never read. Shown once for each place in the code, as Python does with warnings.
    ``warnings.simplefilter("error", MisspellingWarning)`` makes it an error, and so does pytest's option
    ``-W error::amplifier.errors.MisspellingWarning``. While the alias of the published kernel is installed, models do not emit it.
    """


# ── sessions, turns, hooks and deadlines ─────────────────────────────────────────────────────────


class SessionError(AmplifierError):
    """Something about a session's life; see the subclasses."""


class SessionStateError(SessionError, RuntimeError):
    """The call does not fit the session's state: not opened yet, already closed, or another event loop.

    A module gets it as well when it registers something after it was undone. Unlike `SessionBusyError`, waiting does not help.
    """


class NoUnfinishedTurnError(SessionStateError):
    """There is no turn to resume: the conversation is empty, or its latest turn has an answer."""


class SessionBusyError(SessionError, RuntimeError):
    """A turn is running in this session and a second writer was refused.

    Attributes:
        session_id: The session that is busy.
    """

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class ExecutionCancelled(AmplifierError):
    """The turn was stopped through the session's cancellation token and has unwound completely.

    Cancellation from outside (a surrounding scope, ``Task.cancel()``, Ctrl-C) is never turned into this error.

    Attributes:
        session_id: The session whose turn was stopped.
        was_immediate: False when the turn ended during a graceful stop.
        reason: What the requester gave as a reason, if anything.
    """

    def __init__(
        self, message: str, *, session_id: str | None = None, was_immediate: bool = True, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.was_immediate = was_immediate
        self.reason = reason


class ExecutionTimeout(AmplifierError, TimeoutError):
    """The turn as a whole ran into its deadline and has unwound completely.

    Attributes:
        session_id: The session whose turn was stopped.
        seconds: The deadline that fired.
    """

    def __init__(self, message: str, *, session_id: str | None = None, seconds: float | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.seconds = seconds


class ExecutionDenied(AmplifierError):
    """A hook denied what a turn cannot go on without: its prompt or a model call. A denied tool call is a result for the model.

    Attributes:
        event: What was denied: ``prompt:submit`` or ``provider:request``.
        reason: What the hook gave as its reason; may be empty.
    """

    def __init__(self, message: str, *, event: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.event = event
        self.reason = reason


class BudgetError(AmplifierError):
    """A budget cannot be kept: a price is not known, or the loop calls models past it. See `BudgetExceeded` for one that is used up.

    Attributes:
        what: The limit that cannot be kept, such as ``cost``; None if it is the budget as a whole.
    """

    def __init__(self, message: str, *, what: str | None = None) -> None:
        super().__init__(message)
        self.what = what


class BudgetExceeded(BudgetError):
    """A call was refused, or a turn was stopped, because a limit of ``session.budget`` is used up.

    Attributes:
        what: The limit: ``tokens``, ``cost``, ``model_calls``, ``tool_calls`` or ``seconds``.
        limit: Its value; a Decimal for ``cost``.
        used: What was used of it.
        requested: What the refused call needs at least; 0 for ``seconds``.
        session_id: The session whose limit it is; that of the call or one above it.
    """

    def __init__(
        self,
        message: str,
        *,
        what: str | None = None,
        limit: Decimal | float = 0,
        used: Decimal | float = 0,
        requested: Decimal | float = 0,
        session_id: str | None = None,
    ) -> None:
        super().__init__(message, what=what)
        self.limit = limit
        self.used = used
        self.requested = requested
        self.session_id = session_id


class DeadlineExceeded(AmplifierError, TimeoutError):
    """One call into a module overran its deadline and was cancelled.

    Attributes:
        operation: What was called: ``mount``, ``ready``, ``hook``, ``contribution``, ``cleanup``, …
        module: The module's id, where it is known.
        seconds: The deadline that fired.
    """

    def __init__(self, message: str, *, operation: str = "", module: str | None = None, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.operation = operation
        self.module = module
        self.seconds = seconds


class HookRecursionError(AmplifierError, RecursionError):
    """Handlers emit events that reach themselves again, deeper than the kernel allows.

    Attributes:
        chain: The events, outermost first.
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain: tuple[str, ...] = tuple(chain)


class ApprovalTimeoutError(AmplifierError):
    """An approval system raises this when it stopped waiting; the kernel then applies ``approval_default``."""


class NoOneToAskError(AmplifierError):
    """An approval system raises this when there is no one whom it could ask. The kernel denies, and names that reason.

    Attributes:
        keeps_turn: Deny nothing, but leave the turn where it is, so that it can be resumed where someone can be asked; the error is
            raised out of the turn.
    """

    def __init__(self, message: str, *, keeps_turn: bool = False) -> None:
        super().__init__(message)
        self.keeps_turn = keeps_turn


# ── data and contracts ───────────────────────────────────────────────────────────────────────────


class _ProblemsError(AmplifierError, ValueError):
    """Carries every problem at once, so that a person can fix a file in one go."""

    def __init__(self, problems: Iterable[Problem], *, subject: str) -> None:
        self.problems: list[Problem] = list(problems)
        self.subject = subject
        lines = [f"{path}: {problem}" if path else problem for path, problem in self.problems]
        if len(lines) == 1:
            message = f"{subject}: {lines[0]}"
        else:
            message = f"{subject}: {len(lines)} problems\n" + "\n".join(f"  - {line}" for line in lines)
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.problems, subject=self.subject), (), self.__dict__


class PlanError(_ProblemsError):
    """The mount plan cannot be used.

    Attributes:
        problems: Pairs of ``$.path`` and what is wrong there, in reading order.
    """

    def __init__(self, problems: Iterable[Problem], *, subject: str = "invalid mount plan") -> None:
        super().__init__(problems, subject=subject)


class ModelError(_ProblemsError):
    """Data does not fit a model, or a value cannot be written as JSON.

    Attributes:
        problems: Pairs of path (``content[2].text``; empty for the whole value) and what is wrong there.
        subject: What was being read or written, usually the model's name.
    """


class ResultError(_ProblemsError):
    """The model's answer does not fit the type that the caller asked for, also after it was shown the problems.

    Attributes:
        problems: Pairs of path (``$.items[2].price``; ``$`` for the whole value) and what is wrong there.
        result_type: The name of the type.
        answer: The answer as the model gave it, at most 2,000 characters of it.
    """

    def __init__(
        self, problems: Iterable[Problem], *, subject: str | None = None, result_type: str = "", answer: str = ""
    ) -> None:
        super().__init__(problems, subject=subject or f"the answer does not fit {result_type or 'the result type'}")
        self.result_type = result_type
        self.answer = answer


class ContractError(AmplifierError):
    """A module broke the contract of its kind at run time, for example an orchestrator that returned no text.

    Attributes:
        module: The module's id or class name.
        clause: The clause of the contract, where one is known.
    """

    def __init__(self, message: str, *, module: str | None = None, clause: str | None = None) -> None:
        super().__init__(message)
        self.module = module
        self.clause = clause


class ContainedError(AmplifierError):
    """Third-party code raised an exception that is no ``Exception``, and it was contained as a failure of that code.

    ``SystemExit`` from argparse inside a tool is the usual case, the panic of a Rust extension another. ``__cause__`` is what
    was raised. KeyboardInterrupt, GeneratorExit and real cancellation are never turned into this.
    """


class SpuriousCancellation(ContainedError):
    """Third-party code raised the backend's cancellation although nothing had cancelled it.

    On asyncio it is enough to await a future that was cancelled elsewhere.
    """


# ── finding, loading and mounting modules ────────────────────────────────────────────────────────


class MissingExtraError(AmplifierError, ImportError):
    """A feature needs a package that the base install does not bring.

    Attributes:
        feature: What was asked for.
        extra: The extra that brings it: ``pip install 'amplifier[<extra>]'``.
        missing: The package that could not be imported, where it is known.
    """

    def __init__(self, feature: str, *, extra: str, missing: str | None = None) -> None:
        found = f" ({missing} is not installed)" if missing else ""
        super().__init__(f"{feature} needs an optional part{found}; install it with: pip install 'amplifier[{extra}]'")
        self.feature = feature
        self.extra = extra
        self.missing = missing

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.feature, extra=self.extra, missing=self.missing), (), self.__dict__


class ModuleNotFoundError(AmplifierError, builtins.ModuleNotFoundError):
    """No module of this id was found.

    Attributes:
        module_id: What was asked for.
        searched: Where we looked, in order.
        suggestion: The nearest id that does exist, if one is near.
    """

    def __init__(
        self,
        message: str = "",
        *,
        module_id: str | None = None,
        searched: Sequence[str] = (),
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.module_id = module_id
        self.searched: tuple[str, ...] = tuple(searched)
        self.suggestion = suggestion


class ModuleLoadError(AmplifierError):
    """The module was found but could not be imported, classified or mounted; ``__cause__`` is the reason.

    Attributes:
        module_id: The module that failed.
        reason_code: One of ``missing_source``, ``invalid_package_layout``, ``invalid_entry_point``,
            ``invalid_module_metadata``, ``validation_failed``, ``mount_failed``, ``deadline``, ``conflict``, ``not_configured``,
            ``unknown``.
    """

    def __init__(self, message: str = "", *, module_id: str | None = None, reason_code: str = "unknown") -> None:
        super().__init__(message)
        self.module_id = module_id
        self.reason_code = reason_code


class ModuleConflictError(ModuleLoadError):
    """Two different sources claim one module id or one package name; the message names both."""

    def __init__(self, message: str = "", *, module_id: str | None = None, reason_code: str = "conflict") -> None:
        super().__init__(message, module_id=module_id, reason_code=reason_code)


# ── what providers raise ─────────────────────────────────────────────────────────────────────────


class OpeningErrors(AmplifierError, ExceptionGroup[Exception]):
    """Several modules kept a session from opening. One failure is raised as itself.

    Its ``exceptions`` are errors of this tree. ``except AmplifierError`` catches the group, and
    ``except*`` its parts.
    """

    def derive(self, excs: Sequence[Exception]) -> OpeningErrors:  # type: ignore[override]
        """Return a group of the same kind with other errors, as ``split`` needs it."""
        return OpeningErrors(self.message, excs)


class LLMError(AmplifierError):
    """Base of what providers raise.

    Attributes:
        provider: The provider's name.
        model: The model that was asked.
        status_code: The HTTP status, where there was one.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds the server asked us to wait.
        delay_multiplier: Factor on the backoff delay, for errors that need longer pauses.
    """

    _retryable_by_default = False

    def __init__(
        self,
        message: str = "",
        *,
        provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        delay_multiplier: float = 1.0,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.retryable: bool = self._retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after
        self.delay_multiplier = delay_multiplier

    def _shown_fields(self) -> list[str]:
        """What differs from a plain error, for `repr`."""
        shown = [
            f"{name}={value!r}"
            for name in ("provider", "model", "status_code", "retry_after")
            if (value := getattr(self, name)) is not None
        ]
        if self.retryable:
            shown.append("retryable=True")
        if self.delay_multiplier != 1.0:
            shown.append(f"delay_multiplier={self.delay_multiplier!r}")
        return shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(str(self)), *self._shown_fields()])})"


class RateLimitError(LLMError):
    """Too many requests; waiting helps, and `retry_after` often states how long."""

    _retryable_by_default = True


class QuotaExceededError(RateLimitError):
    """The account's quota is used up; unlike a rate limit, waiting does not help."""

    _retryable_by_default = False


class AuthenticationError(LLMError):
    """The credentials are missing or wrong."""


class AccessDeniedError(AuthenticationError):
    """The credentials are right but do not allow this."""


class ContextLengthError(LLMError):
    """The request is longer than the model's context window."""


class ContentFilterError(LLMError):
    """The provider's safety filter refused the request or the answer."""


class InvalidRequestError(LLMError):
    """The provider rejected the request as malformed."""


class NotFoundError(LLMError):
    """The model or endpoint does not exist."""


class AbortError(LLMError):
    """The caller aborted the request."""


class ConfigurationError(LLMError):
    """The provider is not configured well enough to be asked at all."""


class ProviderUnavailableError(LLMError):
    """The provider's service is down or overloaded."""

    _retryable_by_default = True


class NetworkError(ProviderUnavailableError):
    """The provider could not be reached; unlike its base, the service itself may be well."""


class LLMTimeoutError(LLMError):
    """The provider did not answer in time."""

    _retryable_by_default = True


class StreamError(LLMError):
    """The stream broke off in the middle of an answer."""

    _retryable_by_default = True


class InvalidToolCallError(LLMError):
    """The model produced a tool call that cannot be understood.

    Attributes:
        tool_name: The tool it meant, if that much is known.
        raw_arguments: The arguments as the model wrote them.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool_name: str | None = None,
        raw_arguments: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, provider=provider, model=model, status_code=status_code, retryable=retryable)
        self.tool_name = tool_name
        self.raw_arguments = raw_arguments

    def _shown_fields(self) -> list[str]:
        own = [f"{name}={value!r}" for name in ("tool_name", "raw_arguments") if (value := getattr(self, name))]
        return own + super()._shown_fields()


class ReplayMismatchError(LLMError):
    """provider-replay has no recording for the request; the nearest one has `expected` at `path`, where the request has `found`."""

    path: str | None = None
    expected: str | None = None
    found: str | None = None
