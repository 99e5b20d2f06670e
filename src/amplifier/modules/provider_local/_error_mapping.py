"""Maps failures of the model server to the error taxonomy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpcore2

from amplifier.errors import (
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NotFoundError,
    ProviderUnavailableError,
    StreamError,
)

TRANSPORT_ERRORS = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)
"""The exceptions of the HTTP library for a failed connection."""

_LONGEST = 500


def from_body(status: int, body: bytes, model: str) -> LLMError:
    """The error for a response with an error status."""
    try:
        parsed: Any = json.loads(body)
    except ValueError:
        parsed = {}
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return from_error(error if isinstance(error, dict) else {"message": body.decode("utf-8", "replace")}, status, model)


def from_error(error: Mapping[str, Any], status: int, model: str) -> LLMError:
    """The error for an error object of the server."""
    code = error.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) else status
    message = f"the model server refused ({status}): {str(error.get('message', 'no reason given'))[:_LONGEST]}"
    about: dict[str, Any] = {"provider": "local", "model": model, "status_code": status}
    if error.get("type") == "exceed_context_size_error":
        return ContextLengthError(f"{message}; the module's context_size sets it", **about)
    if status == 404:
        return NotFoundError(message, **about)
    if 400 <= status < 500 and status not in (408, 429):
        return InvalidRequestError(message, **about)
    return ProviderUnavailableError(message, **about)


def from_transport(error: Exception, model: str, *, has_begun: bool, idle_timeout: float) -> LLMError:
    """The error for a connection that failed before or during a response."""
    about: dict[str, Any] = {"provider": "local", "model": model}
    if isinstance(error, httpcore2.TimeoutException):
        return LLMTimeoutError(f"the model server gave no sign for {idle_timeout:g} s", **about)
    what = str(error) or type(error).__name__
    if has_begun:
        return StreamError(f"the model server broke off in the middle of an answer: {what}", **about)
    return ProviderUnavailableError(f"the model server cannot be reached: {what}", **about)
