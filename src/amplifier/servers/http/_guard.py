"""The check before every request: the host it is for, the site it comes from, the token it carries.

A page of another site can make a browser send requests to a server on this machine, and by DNS rebinding even under a name of its own. So
a request is refused if its ``Host`` is not one of the server's, or if its ``Origin`` is another one. The token protects from other
programs and users.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._problems import Problem

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
    """An application whose requests are checked first; free paths, which have no data of sessions, need no token."""
    guard = _Guard(
        app=app,
        token=None if token is None else token.encode(),
        hosts={host.lower() for host in hosts},
        origins={origin.lower().rstrip("/") for origin in origins},
        free_paths=free_paths,
    )
    if not origins:
        return guard
    # Outside of the guard: a browser asks for permission without the token.
    return CORSMiddleware(
        guard, list(origins), allow_methods=["*"], allow_headers=["*"], expose_headers=["Mcp-Session-Id"]
    )


@attrs.frozen(kw_only=True, eq=False)
class _Guard:
    """Middleware."""

    _app: ASGIApp
    _token: bytes | None = attrs.field(repr=False)
    _hosts: set[str]
    _origins: set[str]
    _free_paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on."""
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
            message = f"Host: {host!r:.200} is not a name of this server; start it with --allow-host to permit it"
            raise Problem(403, message, code="wrong_host")

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
                raise Problem(403, "the request comes from a page of another site", code="wrong_origin")
            return
        # Same origin: the page was loaded from the host that the request is for.
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
        if origin.lower() not in own | self._origins:
            advice = "may not use this server; start it with --allow-origin to permit it"
            raise Problem(403, f"Origin: pages of {origin!r:.200} {advice}", code="wrong_origin")

    def _check_token(self, authorization: str, token: bytes) -> None:
        scheme, _, given = authorization.partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)
        if scheme.lower() != "bearer" or not is_right:
            expected = "expected Bearer and the token that the server printed when it was started"
            message = f"Authorization: {expected}, got {'another token' if given else 'none'}"
            raise Problem(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
