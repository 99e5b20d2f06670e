"""Errors that providers raise."""

from __future__ import annotations

from ._base import AmplifierError


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
