"""From what a service or the network reports to our taxonomy: one table for all providers, pure.

Above: `_wire` and `_provider`, which raise what is made here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from amplifier._json import visible_text
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

# What services call their errors, in ``error.type`` or ``error.code``; they say more than the status, and inside a
# stream there is no status.
_BY_WORD: Mapping[str, type[LLMError]] = {
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
    r"content.?(filter|management policy|policy)|safety (system|reasons)|flagged|usage policies", re.IGNORECASE
)
_BROKE = re.compile(r"credit balance|exceeded your current quota|billing", re.IGNORECASE)
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")

MAX_MESSAGE = 1000


@attrs.frozen
class ErrorContext:
    """Who and what an error is about, and what its text must not contain.

    Attributes:
        provider: The provider's name.
        model: The model that was asked.
        secret: The key; some servers repeat it in their errors.
        overloaded_multiplier: Factor on the pause after an overload.
    """

    provider: str
    model: str | None = None
    secret: str | None = None
    overloaded_multiplier: float = 10.0

    def clean(self, text: str) -> str:
        """Foreign text for a message: no key, nothing a terminal obeys, not too long."""
        if self.secret and len(self.secret) >= 4:
            text = text.replace(self.secret, "[key]")
        return visible_text(text)[:MAX_MESSAGE]


def error_from_status(context: ErrorContext, status: int, headers: Mapping[str, str], body: Any) -> LLMError:
    """The error for a response that is none."""
    words, message = _words_and_message(body)
    if 300 <= status < 400:
        where = context.clean(headers.get("location", "elsewhere"))
        text = f"{context.provider} redirects to {where}; redirects are not followed, set base_url to the right address"
        return ConfigurationError(text, provider=context.provider, model=context.model, status_code=status)
    kind = _BY_STATUS.get(status, ProviderUnavailableError if status >= 500 else LLMError)
    kind = _refined(kind, words, message)
    # 5xx and 429 keep their nature whatever the body calls itself.
    if status >= 500 and not issubclass(kind, ProviderUnavailableError | LLMTimeoutError | RateLimitError):
        kind = ProviderUnavailableError
    shown = message or "no message"
    named = f" ({words[0]})" if words else ""
    error = kind(
        f"{context.provider} answered {status}{context.clean(named)}: {context.clean(shown)}",
        provider=context.provider,
        model=context.model,
        status_code=status,
        retry_after=retry_after(headers),
        delay_multiplier=_multiplier(context, status, words),
    )
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def error_from_stream_event(context: ErrorContext, body: Any) -> LLMError:
    """The error for a report inside a stream that had begun well."""
    words, message = _words_and_message(body)
    kind = _refined(StreamError, words, message)
    named = f" ({words[0]})" if words else ""
    return kind(
        f"{context.provider} broke off its answer{context.clean(named)}: {context.clean(message or 'no message')}",
        provider=context.provider,
        model=context.model,
        delay_multiplier=_multiplier(context, None, words),
    )


def _multiplier(context: ErrorContext, status: int | None, words: list[str]) -> float:
    overloaded = status == OVERLOADED or "overloaded_error" in words
    return context.overloaded_multiplier if overloaded else 1.0


def _words_and_message(body: Any) -> tuple[list[str], str]:
    """What a body calls its error, most specific first, and what it says, in any of the shapes in use."""
    error = body
    if isinstance(body, dict):
        error = body.get("error") or body.get("detail") or body
    if not isinstance(error, dict):
        return [], str(error or "").strip()
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    words = [error.get(name) for name in ("code", "type")]
    return [w for w in words if isinstance(w, str) and w and w != "error"], str(message).strip()


def _refined(kind: type[LLMError], words: list[str], message: str) -> type[LLMError]:
    for word in words:
        found = _BY_WORD.get(word.lower())
        # A rejection by name says nothing beside a status, which is finer; inside a stream it is all there is.
        if found is not None and (found is not InvalidRequestError or kind is StreamError):
            kind = found
            break
    if kind is RateLimitError and _BROKE.search(message):
        return QuotaExceededError
    if kind in _REJECTED:
        if _CONTEXT.search(message):
            return ContextLengthError
        if _BROKE.search(message):
            return QuotaExceededError
        if _FILTERED.search(message):
            return ContentFilterError
    return kind


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds a server asks us to wait, in whichever of the known headers it says so; None if it does not."""
    now = time.time() if now is None else now
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = (headers.get("retry-after") or "").strip()
    if given:
        seconds = _number(given)
        return seconds if seconds is not None else _until(_http_date(given), now)
    return _until_reset(headers, now)


def _until_reset(headers: Mapping[str, str], now: float) -> float | None:
    """From the rate-limit headers: the longest wait among the budgets that are used up."""
    waits: list[float] = []
    for given, value in headers.items():
        name = given.lower()
        if name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
            left = headers.get(name.removesuffix("-reset") + "-remaining")
            wait = _until(_iso_date(value), now)
        elif name.startswith("x-ratelimit-reset-"):
            left = headers.get(name.replace("-reset-", "-remaining-"))
            wait = _span(value)
        else:
            continue
        if left == "0" and wait is not None:
            waits.append(wait)
    return max(waits, default=None)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < 1e9 else None


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _iso_date(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _until(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, moment - now)


def _span(text: str) -> float | None:
    """``1h2m3.5s`` and the like, as seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    try:
        days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    except ValueError:
        return None
    return days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
