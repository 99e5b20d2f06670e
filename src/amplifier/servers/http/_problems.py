"""Errors as HTTP responses, in the JSON form that clients of the OpenAI API expect, on every route."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import attrs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from amplifier._json import redact_text
from amplifier._reading import record
from amplifier.errors import (
    AmplifierError,
    BudgetExceeded,
    ContextLengthError,
    ExecutionDenied,
    ExecutionTimeout,
    InvalidRequestError,
    LLMError,
    NoUnfinishedTurnError,
    PlanError,
    RateLimitError,
    ResultError,
    SessionBusyError,
)
from amplifier.live import SessionRefused

T = TypeVar("T", bound=attrs.AttrsInstance)

logger: logging.Logger = logging.getLogger("amplifier.servers.http")

_REFUSED = {"session_open": 409, "too_many_sessions": 429, "stopping": 503, "not_started": 503}
_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (SessionBusyError, 409, "session_busy"),
    (NoUnfinishedTurnError, 409, "no_unfinished_turn"),
    (PlanError, 400, "invalid_request"),
    (ExecutionDenied, 403, "denied"),
    (BudgetExceeded, 402, "budget_exceeded"),  # not 429 and not 5xx, which clients repeat by themselves
    (ExecutionTimeout, 504, "turn_timeout"),
    (RateLimitError, 429, "insufficient_quota"),
    (InvalidRequestError, 400, "model_refused_request"),
    (ResultError, 502, "answer_does_not_fit"),
    (LLMError, 502, "model_failed"),
    (AmplifierError, 503, "agent_failed"),
)
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Problem(Exception):
    """A request that cannot be fulfilled; ``param`` is what of it is wrong, such as ``messages[0].content``."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers or {}

    @classmethod
    def of_all(cls, problems: Iterable[tuple[str, str]], *, code: str = "invalid_request") -> Self:
        """A body that does not fit; every member that does not is named."""
        named = [(path.removeprefix("$").removeprefix("."), problem) for path, problem in problems]
        return cls(400, "; ".join(": ".join(each) for each in named), code=code, param=named[0][0] or None)

    def body(self) -> dict[str, Any]:
        """The JSON of the response."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}

    def response(self) -> Response:
        """The response."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def read_body(cls: type[T], body: Mapping[str, Any], *, is_open: bool = False) -> T:
    """The members of a request as an attrs class; one that it does not declare is refused, or ignored if it is open."""
    try:
        read: T = record(cls, is_open=is_open).read(body)
    except PlanError as error:
        raise Problem.of_all(error.problems) from None
    return read


def problem_of(error: BaseException) -> Problem:
    """What a client gets to know of an error of a session or a turn."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, BaseExceptionGroup):
        return problem_of(error.exceptions[0])
    text = redact_text(str(error) or type(error).__name__)
    later: dict[str, str] = {}
    match error:
        case SessionRefused():
            later = {"Retry-After": "5"} if error.code in ("too_many_sessions", "stopping") else {}
            return Problem(_REFUSED[error.code], text, code=error.code, headers=later)
        case RateLimitError(retryable=True):
            later = {"Retry-After": str(math.ceil(min(error.retry_after or 1, 3600)))}
        case ContextLengthError():
            return Problem(400, text, code="context_length_exceeded", param="messages")
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            return Problem(status, text, code="model_rate_limited" if later else code, headers=later)
    logger.error("a request failed", exc_info=error)
    return Problem(500, f"unexpected {type(error).__name__}; the server's log has the details", code="internal_error")


async def _of_problem(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    message, code = str(error.detail), "http_error"
    if error.status_code == 404:
        message, code = f"no route {path!r:.200}; docs: reference/serve", "unknown_route"
    elif error.status_code == 405:
        allowed = headers.get("Allow", "")
        message, code = f"{request.method} is not possible on {path!r:.200}; expected {allowed}", "method_not_allowed"
    return Problem(error.status_code, message, code=code, headers=headers).response()


handlers: dict[Any, Any] = {
    HTTPException: _of_http,
    Problem: _of_problem,
    AmplifierError: _of_problem,
    OSError: _of_problem,
}
"""For Starlette."""
