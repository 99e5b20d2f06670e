"""Map status codes and error bodies of services to the classes of `amplifier.errors`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from amplifier._internal.json import visible_text
from amplifier.errors import (
    AccessDeniedError,
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
    StreamError,
)

OVERLOADED = 529
# The factor for the delay before a retry.
_OVERLOADED_DELAY = 10.0

_BY_STATUS: Mapping[int, type[LLMError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    402: QuotaExceededError,
    403: AccessDeniedError,
    404: NotFoundError,
    408: LLMTimeoutError,
    409: ProviderUnavailableError,
    413: ContextLengthError,
    422: InvalidRequestError,
    425: ProviderUnavailableError,
    429: RateLimitError,
}

# Error classes by ``error.type`` and ``error.code``. These values are more specific than the
# status, and an error inside a stream has no status.
_BY_CODE: Mapping[str, type[LLMError]] = {
    "api_error": ProviderUnavailableError,
    "authentication_error": AuthenticationError,
    "billing_error": QuotaExceededError,
    "billing_hard_limit_reached": QuotaExceededError,
    "content_filter": ContentFilterError,
    "content_policy_violation": ContentFilterError,
    "context_length_exceeded": ContextLengthError,
    "exceed_context_size_error": ContextLengthError,
    "image_content_policy_violation": ContentFilterError,
    "insufficient_quota": QuotaExceededError,
    "invalid_api_key": AuthenticationError,
    "invalid_prompt": InvalidRequestError,
    "invalid_request_error": InvalidRequestError,
    "model_not_found": NotFoundError,
    "not_found_error": NotFoundError,
    "overloaded_error": ProviderUnavailableError,
    "permission_error": AccessDeniedError,
    "rate_limit_error": RateLimitError,
    "rate_limit_exceeded": RateLimitError,
    "request_too_large": ContextLengthError,
    "responsibleaipolicyviolation": ContentFilterError,
    "server_error": ProviderUnavailableError,
    "string_above_max_length": ContextLengthError,
    "timeout_error": LLMTimeoutError,
}

_REJECTED = (InvalidRequestError, LLMError)
_CONTEXT = re.compile(
    r"prompt is too long|context.?(length|window|size)|maximum context|too many tokens"
    r"|input is too long|exceeds? the (model'?s? )?(maximum|available)|reduce the length",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content.?(filter|management policy|policy)|safety (system|reasons)|flagged|usage policies",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"credit balance|exceeded your current quota|billing", re.IGNORECASE)

MAX_MESSAGE = 1000


@attrs.frozen
class CallContext:
    """The deadlines of a request, and the facts for its error messages.

    Attributes:
        provider: The provider's name.
        model: The requested model.
        secret: The API key. It is removed from error messages, because some servers quote it there.
        timeout: Seconds for the whole exchange. None for no limit.
        idle_timeout: Seconds without a byte. None for no limit.
    """

    provider: str
    model: str | None = None
    secret: str | None = None
    timeout: float | None = None
    idle_timeout: float | None = None

    def clean(self, text: str) -> str:
        """Return a server's text for a message, shortened, without key or control characters."""
        if self.secret and len(self.secret) >= 4:
            text = text.replace(self.secret, "[key]")
        return visible_text(text)[:MAX_MESSAGE]

    def error(self, kind: type[LLMError], phrase: str, **fields: Any) -> LLMError:
        """Return an error. Its message is the provider's name and a phrase."""
        return kind(f"{self.provider} {phrase}", provider=self.provider, model=self.model, **fields)


def error_from_status(
    context: CallContext, status: int, headers: Mapping[str, str], body: Any
) -> LLMError:
    """Return the error for a response with an error status."""
    codes, message = _codes_and_message(body)
    if 300 <= status < 400:
        location = context.clean(headers.get("location", "another address"))
        phrase = (
            f"redirects to {location}; redirects are not followed, so set base_url to the right "
            "address"
        )
        return context.error(ConfigurationError, phrase, status_code=status)
    kind = _refined(_kind_of(status), codes, message)
    # A 5xx status is always a server error, even if the body has a code of another class.
    if status >= 500 and not issubclass(
        kind, ProviderUnavailableError | LLMTimeoutError | RateLimitError
    ):
        kind = ProviderUnavailableError
    shown = message or "no message"
    named = f" ({codes[0]})" if codes else ""
    error = context.error(
        kind,
        f"answered {status}{context.clean(named)}: {context.clean(shown)}",
        status_code=status,
        retry_after=retry_after(headers),
        delay_multiplier=_multiplier(status, codes),
    )
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def error_from_stream_event(context: CallContext, body: Any) -> LLMError:
    """Return the error for an error event inside a stream."""
    codes, message = _codes_and_message(body)
    status = _status_within(body)
    kind = StreamError if status is None else _kind_of(status)
    kind = _refined(kind, codes, message)
    named = f" ({codes[0]})" if codes else ""
    return context.error(
        kind,
        f"failed while streaming{context.clean(named)}: {context.clean(message or 'no message')}",
        status_code=status,
        delay_multiplier=_multiplier(status, codes),
    )


def _kind_of(status: int) -> type[LLMError]:
    return _BY_STATUS.get(status, ProviderUnavailableError if status >= 500 else LLMError)


def _status_within(body: Any) -> int | None:
    """Return the status that llama.cpp's server uses as the code of an error in a stream."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _multiplier(status: int | None, codes: list[str]) -> float:
    overloaded = status == OVERLOADED or "overloaded_error" in codes
    return _OVERLOADED_DELAY if overloaded else 1.0


def _codes_and_message(body: Any) -> tuple[list[str], str]:
    """Return the codes of an error body, the most specific first, and its message."""
    error = body
    if isinstance(body, dict):
        error = body.get("error") or body.get("detail") or body
    if not isinstance(error, dict):
        return [], str(error or "").strip()
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    codes = [error.get(name) for name in ("code", "type")]
    texts = [code for code in codes if isinstance(code, str) and code and code != "error"]
    return texts, str(message).strip()


def _refined(kind: type[LLMError], codes: list[str], message: str) -> type[LLMError]:
    for code in codes:
        match = _BY_CODE.get(code.lower())
        # A status is more specific than "invalid request". Inside a stream there is no status.
        if match is not None and (match is not InvalidRequestError or kind is StreamError):
            kind = match
            break
    if kind is RateLimitError and _QUOTA.search(message):
        return QuotaExceededError
    if kind in _REJECTED:
        if _CONTEXT.search(message):
            return ContextLengthError
        if _QUOTA.search(message):
            return QuotaExceededError
        if _FILTERED.search(message):
            return ContentFilterError
    return kind


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Return the seconds to wait before a retry, or None if no header states them."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = (headers.get("retry-after") or "").strip()
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < 1e9 else None
