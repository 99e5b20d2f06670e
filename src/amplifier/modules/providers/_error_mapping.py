"""Maps status codes and error bodies of services to the error taxonomy; one table for all providers."""

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
_OVERLOADED_DELAY = 10.0
"""Factor on the delay before a retry."""

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

# The values of ``error.type`` and ``error.code``; they are more specific than the status, and an error inside a stream has
# no status.
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
    r"prompt is too long|context.?(length|window|size)|maximum context|too many tokens|input is too long"
    r"|exceeds? the (model'?s? )?(maximum|available)|reduce the length",
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
    """What a request has to keep to, and what its errors state.

    Attributes:
        provider: The provider's name.
        model: The requested model.
        secret: The API key; some servers include it in error messages, which must not contain it.
        timeout: Seconds for the whole exchange; None for no limit.
        idle_timeout: Seconds without a byte; None for no limit.
    """

    provider: str
    model: str | None = None
    secret: str | None = None
    timeout: float | None = None
    idle_timeout: float | None = None

    def clean(self, text: str) -> str:
        """Text of a server for a message: without the key and control characters, and truncated."""
        if self.secret and len(self.secret) >= 4:
            text = text.replace(self.secret, "[key]")
        return visible_text(text)[:MAX_MESSAGE]

    def error(self, kind: type[LLMError], words: str, **fields: Any) -> LLMError:
        """An error about the provider: its name and these words."""
        return kind(f"{self.provider} {words}", provider=self.provider, model=self.model, **fields)


def error_from_status(
    context: CallContext, status: int, headers: Mapping[str, str], body: Any
) -> LLMError:
    """The error for a response with an error status."""
    codes, message = _codes_and_message(body)
    if 300 <= status < 400:
        where = context.clean(headers.get("location", "elsewhere"))
        words = (
            f"redirects to {where}; redirects are not followed, set base_url to the right address"
        )
        return context.error(ConfigurationError, words, status_code=status)
    kind = _refined(_kind_of(status), codes, message)
    # A 5xx status stays a server error whatever the body calls it.
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
    """The error for an error event inside a stream."""
    codes, message = _codes_and_message(body)
    status = _status_within(body)
    kind = StreamError if status is None else _kind_of(status)
    kind = _refined(kind, codes, message)
    named = f" ({codes[0]})" if codes else ""
    return context.error(
        kind,
        f"broke off its answer{context.clean(named)}: {context.clean(message or 'no message')}",
        status_code=status,
        delay_multiplier=_multiplier(status, codes),
    )


def _kind_of(status: int) -> type[LLMError]:
    return _BY_STATUS.get(status, ProviderUnavailableError if status >= 500 else LLMError)


def _status_within(body: Any) -> int | None:
    """The status that llama.cpp's server writes as the code of an error in a stream."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _multiplier(status: int | None, codes: list[str]) -> float:
    overloaded = status == OVERLOADED or "overloaded_error" in codes
    return _OVERLOADED_DELAY if overloaded else 1.0


def _codes_and_message(body: Any) -> tuple[list[str], str]:
    """The codes of an error body, most specific first, and its message, in any of the known formats."""
    error = body
    if isinstance(body, dict):
        error = body.get("error") or body.get("detail") or body
    if not isinstance(error, dict):
        return [], str(error or "").strip()
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    codes = [error.get(name) for name in ("code", "type")]
    return [w for w in codes if isinstance(w, str) and w and w != "error"], str(message).strip()


def _refined(kind: type[LLMError], codes: list[str], message: str) -> type[LLMError]:
    for code in codes:
        found = _BY_CODE.get(code.lower())
        # A status is more specific than "invalid request"; inside a stream there is no status.
        if found is not None and (found is not InvalidRequestError or kind is StreamError):
            kind = found
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
    """Seconds to wait before a retry; None without a header that says so."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = (headers.get("retry-after") or "").strip()
    seconds = _number(given)
    if seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(given).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < 1e9 else None
