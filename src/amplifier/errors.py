"""Every error of the project, in one tree.

    AmplifierError
    ├── SessionError
    │   ├── SessionStateError (RuntimeError)      not open, already closed, or another event loop
    │   │   └── NoUnfinishedTurnError             there is no turn to resume
    │   └── SessionBusyError (RuntimeError)       a turn is already running in this session
    ├── ExecutionCancelled                        the turn was stopped by its cancellation token
    ├── ExecutionTimeout (TimeoutError)           the turn exceeded its deadline
    ├── DeadlineExceeded (TimeoutError)           a call into a module exceeded its deadline
    ├── HookRecursionError (RecursionError)       handlers emit events in a circle
    ├── ApprovalTimeoutError                      an approval system stopped waiting
    ├── NoOneToAskError                           an approval system has no one to ask
    ├── PlanError (ValueError)                    the mount plan is invalid, with a list of problems
    ├── ModelError (ValueError)                   data does not fit a model, with a list of problems
    ├── ResultError (ValueError)                  the answer does not fit the requested type
    ├── ExecutionDenied                           a hook denied the prompt or a model call
    ├── BudgetError                               a budget cannot be kept
    │   └── BudgetExceeded                        a limit of session.budget is used up
    ├── ContractError                             a module broke the contract of its type
    ├── ContainedError                            third-party code raised SystemExit or the like
    │   └── SpuriousCancellation                  it raised a cancellation that no one requested
    ├── MissingExtraError (ImportError)           an optional dependency is not installed
    ├── ModuleNotFoundError (ModuleNotFoundError) no module has that id
    ├── ModuleLoadError                           a module could not be imported or mounted
    │   └── ModuleConflictError                   two different sources claim one id or package name
    ├── OpeningErrors (ExceptionGroup)            several modules kept a session from opening
    └── LLMError                                  a call of a provider failed
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
    MisspellingWarning                            a UserWarning: a name resembles a known one

A message states the problem, the expectation and the remedy. The fields hold the facts.
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
"""A path such as ``content[2].text`` or ``$.session.context``, and the problem there."""


class AmplifierError(Exception):
    """Base of all errors that this project raises on purpose."""


class MisspellingWarning(UserWarning):
    """An unknown name resembles a known one.

    A handler for ``tool:per`` and ``ToolResult(sucess=False)`` are examples. Such a name is
    allowed, because events may have any name, and models ignore or keep unknown keywords. Nothing
    fails, but the handler is never called and the value never read. Python shows the warning once
    for each place in the code.

    ``warnings.simplefilter("error", MisspellingWarning)`` makes it an error, and so does pytest's
    option ``-W error::amplifier.errors.MisspellingWarning``. While the alias of the published
    kernel is installed, models do not emit it.
    """


# ── sessions, turns, hooks and deadlines ─────────────────────────────────────────────────────────


class SessionError(AmplifierError):
    """Base of the errors about the state of a session."""


class SessionStateError(SessionError, RuntimeError):
    """The call does not fit the session's state.

    The session is not open yet, already closed, or belongs to another event loop. The error is
    also raised in a module that registers something after it was undone. Unlike `SessionBusyError`,
    waiting does not help.
    """


class NoUnfinishedTurnError(SessionStateError):
    """There is no turn to resume: the conversation is empty, or its latest turn has an answer."""


class SessionBusyError(SessionError, RuntimeError):
    """A turn is running in this session and a second writer was refused.

    Attributes:
        session_id: Id of the busy session.
    """

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class ExecutionCancelled(AmplifierError):
    """The turn was stopped through the session's cancellation token and has unwound completely.

    Cancellation from outside (a surrounding scope, ``Task.cancel()``, Ctrl-C) is never turned into
    this error.

    Attributes:
        session_id: Id of the session of the turn.
        was_immediate: False if the turn ended during a graceful stop.
        reason: Reason of the request, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        session_id: str | None = None,
        was_immediate: bool = True,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.was_immediate = was_immediate
        self.reason = reason


class ExecutionTimeout(AmplifierError, TimeoutError):
    """The whole turn exceeded its deadline and has unwound completely.

    Attributes:
        session_id: Id of the session of the turn.
        seconds: The deadline in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        session_id: str | None = None,
        seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.session_id = session_id
        self.seconds = seconds


class ExecutionDenied(AmplifierError):
    """A hook denied the prompt or a model call, and the turn cannot continue.

    A denied tool call is a result for the model instead.

    Attributes:
        event: The denied event: ``prompt:submit`` or ``provider:request``.
        reason: Reason of the hook, which may be empty.
    """

    def __init__(
        self,
        message: str,
        *,
        event: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.event = event
        self.reason = reason


class BudgetError(AmplifierError):
    """A budget cannot be kept: a price is unknown, or the loop calls models past it.

    See `BudgetExceeded` for a budget that is used up.

    Attributes:
        what: The limit that cannot be kept, such as ``cost``. None means the whole budget.
    """

    def __init__(self, message: str, *, what: str | None = None) -> None:
        super().__init__(message)
        self.what = what


class BudgetExceeded(BudgetError):
    """A call was refused, or a turn was stopped, because a limit of ``session.budget`` is used up.

    Attributes:
        what: The limit: ``tokens``, ``cost``, ``model_calls``, ``tool_calls`` or ``seconds``.
        limit: Value of the limit, a Decimal for ``cost``.
        used: Amount that is used already.
        requested: Minimum amount for the refused call. It is 0 for ``seconds``.
        session_id: Id of the session with the limit: the session of the call, or one above it.
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
    """A call into a module exceeded its deadline and was cancelled.

    Attributes:
        operation: Kind of the call, such as ``mount``, ``ready``, ``hook`` or ``cleanup``.
        module: Id of the module, or None if it is unknown.
        seconds: The deadline in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        module: str | None = None,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.module = module
        self.seconds = seconds


class HookRecursionError(AmplifierError, RecursionError):
    """Handlers emit events that reach the same handlers again, deeper than the kernel allows.

    Attributes:
        chain: Names of the events, outermost first.
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain: tuple[str, ...] = tuple(chain)


class ApprovalTimeoutError(AmplifierError):
    """Raised by an approval system that stopped waiting.

    The kernel then applies ``approval_default``.
    """


class NoOneToAskError(AmplifierError):
    """Raised by an approval system that has no one to ask. The kernel denies with that reason.

    Attributes:
        keeps_turn: True interrupts the turn with this error instead of denying, so that it can be
            resumed where there is someone to ask.
    """

    def __init__(self, message: str, *, keeps_turn: bool = False) -> None:
        super().__init__(message)
        self.keeps_turn = keeps_turn


# ── data and contracts ───────────────────────────────────────────────────────────────────────────


class _ProblemsError(AmplifierError, ValueError):
    """An error with every problem, so that a person can fix a file in one go."""

    def __init__(self, problems: Iterable[Problem], *, subject: str) -> None:
        self.problems: list[Problem] = list(problems)
        self.subject = subject
        lines = [f"{path}: {problem}" if path else problem for path, problem in self.problems]
        if len(lines) == 1:
            message = f"{subject}: {lines[0]}"
        else:
            message = "\n  - ".join([f"{subject}: {len(lines)} problems", *lines])
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.problems, subject=self.subject), (), self.__dict__


class PlanError(_ProblemsError):
    """The mount plan cannot be used.

    Attributes:
        problems: Pairs of a ``$.path`` and the problem there, in reading order.
    """

    def __init__(self, problems: Iterable[Problem], *, subject: str = "invalid mount plan") -> None:
        super().__init__(problems, subject=subject)


class ModelError(_ProblemsError):
    """Data does not fit a model, or a value cannot be written as JSON.

    Attributes:
        problems: Pairs of a path (``content[2].text``, or empty for the whole value) and the
            problem there.
        subject: Name of the value that was read or written, usually the name of the model.
    """


class ResultError(_ProblemsError):
    """The model's answer does not fit the type that the caller requested.

    The model got the problems and could correct its answer before this is raised.

    Attributes:
        problems: Pairs of a path (``$.items[2].price``, or ``$`` for the whole value) and the
            problem there.
        result_type: Name of the requested type.
        answer: Answer of the model, at most 2,000 characters of it.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        *,
        subject: str | None = None,
        result_type: str = "",
        answer: str = "",
    ) -> None:
        default = f"the answer does not fit {result_type or 'the result type'}"
        super().__init__(problems, subject=subject or default)
        self.result_type = result_type
        self.answer = answer


class ContractError(AmplifierError):
    """A module broke the contract of its type at run time.

    An orchestrator that does not return text is an example.

    Attributes:
        module: Id or class name of the module.
        clause: Id of the clause, or None if it is unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        module: str | None = None,
        clause: str | None = None,
    ) -> None:
        super().__init__(message)
        self.module = module
        self.clause = clause


class ContainedError(AmplifierError):
    """Third-party code raised a ``BaseException``, which was contained as a failure of that code.

    ``SystemExit`` from argparse inside a tool is the usual case, and the panic of a Rust extension
    is another. ``__cause__`` is the original exception. KeyboardInterrupt, GeneratorExit and real
    cancellation are never turned into this.
    """


class SpuriousCancellation(ContainedError):
    """Third-party code raised the backend's cancellation although no one had cancelled it.

    On asyncio, awaiting a future that was cancelled elsewhere does that.
    """


# ── finding, loading and mounting modules ────────────────────────────────────────────────────────


class MissingExtraError(AmplifierError, ImportError):
    """A feature needs a package that the base install does not contain.

    Attributes:
        feature: Name of the feature.
        extra: The extra with the package: ``pip install 'amplifier[<extra>]'``.
        missing: Name of the package that could not be imported, or None if it is unknown.
    """

    def __init__(self, feature: str, *, extra: str, missing: str | None = None) -> None:
        found = f" ({missing} is not installed)" if missing else ""
        remedy = f"install it with: pip install 'amplifier[{extra}]'"
        super().__init__(f"{feature} needs an optional part{found}; {remedy}")
        self.feature = feature
        self.extra = extra
        self.missing = missing

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(type(self), self.feature, extra=self.extra, missing=self.missing)
        return make, (), self.__dict__


class ModuleNotFoundError(AmplifierError, builtins.ModuleNotFoundError):
    """No module of this id was found.

    Attributes:
        module_id: The requested id.
        searched: Places of the search, in order.
        suggestion: The most similar id that exists, or None.
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
    """A module was found, but could not be imported, classified or mounted.

    ``__cause__`` is the reason.

    Attributes:
        module_id: Id of the module.
        reason_code: One of ``missing_source``, ``invalid_package_layout``, ``invalid_entry_point``,
            ``invalid_module_metadata``, ``validation_failed``, ``mount_failed``, ``deadline``,
            ``conflict``, ``not_configured``, ``unknown``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        module_id: str | None = None,
        reason_code: str = "unknown",
    ) -> None:
        super().__init__(message)
        self.module_id = module_id
        self.reason_code = reason_code


class ModuleConflictError(ModuleLoadError):
    """Two different sources claim one module id or one package name. The message names both."""

    def __init__(
        self,
        message: str = "",
        *,
        module_id: str | None = None,
        reason_code: str = "conflict",
    ) -> None:
        super().__init__(message, module_id=module_id, reason_code=reason_code)


# ── providers ────────────────────────────────────────────────────────────────────────────────────


class OpeningErrors(AmplifierError, ExceptionGroup[Exception]):
    """Several modules kept a session from opening. One failure is raised as itself.

    Its ``exceptions`` are errors of this tree. ``except AmplifierError`` catches the group, and
    ``except*`` its parts.
    """

    def derive(self, excs: Sequence[Exception]) -> OpeningErrors:  # type: ignore[override]
        """Return a group of the same kind with other errors, as ``split`` needs it."""
        return OpeningErrors(self.message, excs)


class LLMError(AmplifierError):
    """Base of the errors of providers.

    Attributes:
        provider: Name of the provider.
        model: Name of the model.
        status_code: HTTP status of the response, or None.
        retryable: True if the same request may succeed later.
        retry_after: Seconds that the service asks to wait, or None.
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
        """Return the fields that differ from a plain error, for `repr`."""
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
    """There were too many requests. Waiting helps, and `retry_after` often has the seconds."""

    _retryable_by_default = True


class QuotaExceededError(RateLimitError):
    """The account's quota is used up. Unlike with a rate limit, waiting does not help."""

    _retryable_by_default = False


class AuthenticationError(LLMError):
    """The credentials are missing or wrong."""


class AccessDeniedError(AuthenticationError):
    """The credentials are valid but do not allow the request."""


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
    """The configuration of the provider is too incomplete for a request."""


class ProviderUnavailableError(LLMError):
    """The provider's service is down or overloaded."""

    _retryable_by_default = True


class NetworkError(ProviderUnavailableError):
    """The provider could not be reached. Unlike with the base class, the service may be up."""


class LLMTimeoutError(LLMError):
    """The provider did not answer in time."""

    _retryable_by_default = True


class StreamError(LLMError):
    """The stream broke off in the middle of an answer."""

    _retryable_by_default = True


class InvalidToolCallError(LLMError):
    """The model produced a tool call that cannot be understood.

    Attributes:
        tool_name: Name of the tool, or None if it is unknown.
        raw_arguments: Arguments as the model wrote them.
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
        super().__init__(
            message,
            provider=provider,
            model=model,
            status_code=status_code,
            retryable=retryable,
        )
        self.tool_name = tool_name
        self.raw_arguments = raw_arguments

    def _shown_fields(self) -> list[str]:
        fields = {"tool_name": self.tool_name, "raw_arguments": self.raw_arguments}
        shown = [f"{name}={value!r}" for name, value in fields.items() if value]
        return shown + super()._shown_fields()


class ReplayMismatchError(LLMError):
    """The provider-replay module has no recording for the request.

    The nearest recording has `expected` at `path`, where the request has `found`.
    """

    path: str | None = None
    expected: str | None = None
    found: str | None = None
