"""The checks before every request, the reading of its body, and errors as responses."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, Final, Self, TypeVar

import anyio
import attrs
import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from amplifier._internal.json import redact_text
from amplifier._internal.reading import Kind, record
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
from amplifier.shared_sessions import SessionRefused

T = TypeVar("T", bound=attrs.AttrsInstance)

# ── errors as responses ──
#
# On every route, errors have the JSON form that clients of the OpenAI API expect.

logger: logging.Logger = logging.getLogger("amplifier.servers.http")

_REFUSED = {"session_open": 409, "too_many_sessions": 429, "stopping": 503, "not_started": 503}
_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (SessionBusyError, 409, "session_busy"),
    (NoUnfinishedTurnError, 409, "no_unfinished_turn"),
    (PlanError, 400, "invalid_request"),
    (ExecutionDenied, 403, "denied"),
    # Clients repeat requests after 429 and 5xx.
    (BudgetExceeded, 402, "budget_exceeded"),
    (ExecutionTimeout, 504, "turn_timeout"),
    (RateLimitError, 429, "insufficient_quota"),
    (InvalidRequestError, 400, "model_refused_request"),
    (ResultError, 502, "answer_does_not_fit"),
    (LLMError, 502, "model_failed"),
    (AmplifierError, 503, "agent_failed"),
)
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class Problem(Exception):
    """A request that can't be fulfilled.

    Attributes:
        param: The invalid part of the request, such as ``messages[0].content``, or None.
        status: The status of the response.
        message: The message for the client.
        code: The code of the problem.
        headers: More headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.message = message
        self.code = code
        self.headers: dict[str, str] = headers or {}

    @classmethod
    def of_all(cls, problems: Iterable[tuple[str, str]], *, code: str = "invalid_request") -> Self:
        """Return the problem of an invalid body, which names every invalid member."""
        named = [(path.removeprefix("$").removeprefix("."), problem) for path, problem in problems]
        message = "; ".join(": ".join(pair) for pair in named)
        return cls(400, message, code=code, param=named[0][0] or None)

    def body(self) -> dict[str, Any]:
        """Return the JSON of the response."""
        kind = _TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {
            "error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}
        }

    def response(self) -> Response:
        """Return the response."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def read_body(cls: type[T], body: Mapping[str, Any], *, is_open: bool = False) -> T:
    """Read the members of a request as an attrs class.

    An undeclared member is refused, or ignored if the class is open.
    """
    try:
        result: T = _body_kind(cls, is_open).read(body)
    except PlanError as error:
        raise Problem.of_all(error.problems) from None
    return result


@cache
def _body_kind(cls: type[attrs.AttrsInstance], is_open: bool) -> Kind:
    return record(cls, is_open=is_open)


def problem_of(error: BaseException) -> Problem:
    """Return the problem that clients receive for an error in a session or a turn."""
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
            return Problem(
                status, text, code="model_rate_limited" if later else code, headers=later
            )
    logger.error("a request failed", exc_info=error)
    return Problem(
        500,
        f"unexpected {type(error).__name__}; the server's log has the details",
        code="internal_error",
    )


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
        message, code = (
            f"{request.method} is not possible on {path!r:.200}; expected {allowed}",
            "method_not_allowed",
        )
    return Problem(error.status_code, message, code=code, headers=headers).response()


handlers: dict[Any, Any] = {
    HTTPException: _of_http,
    Problem: _of_problem,
    AmplifierError: _of_problem,
    OSError: _of_problem,
}
"""Exception handlers for Starlette."""


# ── limits and bodies ──

MAX_OUTPUT_LENGTH: Final = 20_000
"""Maximum length of a tool's output for clients. The conversation has the whole output."""


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if isinstance(value, bool) or not value > 0:
        raise ValueError(f"{attribute.name}: expected a number greater than 0, got {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of a server.

    Attributes:
        body_bytes: Maximum size of a request. A larger request is answered with 413.
        sessions: Maximum number of open sessions of the session API. More are answered with 429.
        turns: Maximum number of running turns, on all routes. More are answered with 429.
        body_seconds: Seconds for receiving the body of a request.
        send_seconds: Seconds in which a client has to accept an event. A slower client counts as
            disconnected.
        idle_seconds: Seconds after which an unused session of the session API is closed.
        abandoned_seconds: Seconds after which a turn of the session API is stopped when its last
            watcher has left.
        shutdown_seconds: Seconds for running turns to end when the server is stopped.
    """

    body_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=_positive)
    sessions: int = attrs.field(default=100, validator=_positive)
    turns: int = attrs.field(default=50, validator=_positive)
    body_seconds: float = attrs.field(default=30.0, validator=_positive)
    send_seconds: float = attrs.field(default=60.0, validator=_positive)
    idle_seconds: float = attrs.field(default=3600.0, validator=_positive)
    abandoned_seconds: float = attrs.field(default=30.0, validator=_positive)
    shutdown_seconds: float = attrs.field(default=10.0, validator=_positive)


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """Read the body of a request: one JSON object."""
    # A form on another site can send text/plain without the browser's permission, but not JSON.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            f"content-type: expected application/json, got {kind!r:.80}",
            code="unsupported_media_type",
        )
    too_large = Problem(
        413, f"the body is larger than {limits.body_bytes} bytes", code="body_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        with anyio.fail_after(limits.body_seconds):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > limits.body_bytes:
                        raise too_large
    except ClientDisconnect:
        raise Problem(
            400, "the client left before it had sent the body", code="client_left"
        ) from None
    except TimeoutError:
        raise Problem(
            408, f"the body did not arrive within {limits.body_seconds:g} s", code="body_too_slow"
        ) from None
    try:
        value = orjson.loads(bytes(body))
    except ValueError as error:
        raise Problem(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Problem(
            400,
            f"the body: expected a JSON object, got {type(value).__name__}",
            code="invalid_json",
        )
    return value


# ── the checks before every request ──
#
# A page of another site can make a browser send requests to a server on this machine, and with DNS
# rebinding even under the site's own name. So a request is refused if its ``Host`` isn't a name of
# the server, or if its ``Origin`` is foreign. The token protects against other programs and users.

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def guarded(
    app: ASGIApp,
    *,
    token: str | None,
    hosts: Collection[str],
    origins: Collection[str] = (),
    free_paths: Collection[str] = (),
) -> ASGIApp:
    """Return an application that checks each request first.

    Free paths, which have no data of sessions, need no token.
    """
    guard = _Guard(
        app=app,
        token=None if token is None else token.encode(),
        hosts={host.lower() for host in hosts},
        origins={origin.lower().rstrip("/") for origin in origins},
        free_paths=free_paths,
    )
    if not origins:
        return guard
    # This is outside of the guard, since a browser's preflight request has no token.
    return CORSMiddleware(
        guard,
        list(origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id"],
    )


@attrs.frozen(kw_only=True, eq=False)
class _Guard:
    """Middleware that checks requests and adds headers to responses."""

    _app: ASGIApp
    _token: bytes | None = attrs.field(repr=False)
    _hosts: set[str]
    _origins: set[str]
    _free_paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(headers, host)
        if self._token is not None and scope["path"] not in self._free_paths:
            self._check_token(headers.get("authorization", ""), self._token)

    def _check_host(self, host: str) -> None:
        name = host.lower()
        if not name.endswith("]"):
            name = name.rpartition(":")[0] or name
        if "*" not in self._hosts and name not in self._hosts:
            message = (
                f"Host: {host!r:.200} is not a name of this server; start it with --allow-host to "
                "permit it"
            )
            raise Problem(403, message, code="wrong_host")

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        if origin is None:
            if (
                headers.get("sec-fetch-site") == "cross-site"
                and headers.get("sec-fetch-mode") != "navigate"
            ):
                raise Problem(
                    403, "the request comes from a page of another site", code="wrong_origin"
                )
            return
        # The page was loaded from the host that receives the request, so the origin is the same.
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
        if origin.lower() not in own | self._origins:
            advice = "may not use this server; start it with --allow-origin to permit it"
            raise Problem(403, f"Origin: pages of {origin!r:.200} {advice}", code="wrong_origin")

    def _check_token(self, authorization: str, token: bytes) -> None:
        scheme, _, sent = authorization.partition(" ")
        is_right = hmac.compare_digest(sent.strip().encode("latin-1", "replace"), token)
        if scheme.lower() != "bearer" or not is_right:
            expected = "expected Bearer and the token that the server printed when it was started"
            message = f"Authorization: {expected}, got {'another token' if sent else 'none'}"
            raise Problem(
                401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
            )
