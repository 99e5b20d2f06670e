"""The chat page: files of this package, sent as they are; the token and everything else come from the browser."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/chat.css": ("chat.css", "text/css; charset=utf-8"),
}

FREE_PATHS: Final = tuple(_FILES)
"""Paths without any data of sessions, which need no token: a browser cannot send one with the first request."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def page_routes() -> list[Route]:
    """``/`` and its files."""
    return [file_route(path, name, kind) for path, (name, kind) in _FILES.items()]


def file_route(path: str, name: str, kind: str) -> Route:
    """One file of ``chat_page``."""
    content = files(__package__).joinpath("chat_page", name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"Content-Security-Policy": _POLICY})

    return Route(path, send, methods=["GET"])
