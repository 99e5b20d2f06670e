"""The pages: the chat, the traces of stored sessions, and the turns of a durable engine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from amplifier.errors import AmplifierError
from amplifier.store import RUNNING, SessionIndex
from amplifier.tracing import live_page, live_policy, page_data
from amplifier.tracing.sessions import SessionFollower

from ..access import LOOPBACK_HOSTS
from ._event_stream import event_number
from .requests import Problem, guarded, handlers, problem_of

# The files are sent unchanged. The token and everything else are added in the browser.
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/chat.css": ("chat.css", "text/css; charset=utf-8"),
}

FREE_PATHS: Final = tuple(_FILES)
"""Paths without session data. They need no token, since a first request can't carry one."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def file_routes(listed: Mapping[str, tuple[str, str]] = _FILES) -> list[Route]:
    """Return the routes of ``/`` and its files, or of other files in ``chat_page``."""
    return [_file_route(path, name, kind) for path, (name, kind) in listed.items()]


def _file_route(path: str, name: str, kind: str) -> Route:
    content = files(__package__).joinpath("chat_page", name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"Content-Security-Policy": _POLICY})

    return Route(path, send, methods=["GET"])


TRACE_PAGE: Final = "/trace"
"""The path of the page. The address names the session after ``#``, so the page needs no token."""
_MAX_FOLLOWED: Final = 8


class _Traces:
    """The sessions with an open page. Read lines are kept, so a page receives only new rows."""

    def __init__(self, store: SessionIndex) -> None:
        self._store = store
        self._followed: dict[str, SessionFollower] = {}
        self._reading = anyio.Lock()

    async def send_page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": live_policy()}
        return Response(live_page(), media_type="text/html; charset=utf-8", headers=headers)

    async def send_changes(self, request: Request) -> Response:
        session_id, after = (
            request.path_params["session_id"],
            event_number(request.query_params.get("after"), "after"),
        )
        # Several pages may be open at the same time.
        async with self._reading:
            return JSONResponse(await anyio.to_thread.run_sync(self._changes, session_id, after))

    def _changes(self, session_id: str, after: int) -> dict[str, Any]:
        if not self._store.exists(session_id):
            raise Problem(404, f"no session {session_id!r:.80} is stored", code="session_not_found")
        follower = self._followed.pop(session_id, None) or SessionFollower(self._store, session_id)
        # The least recently used session comes first.
        self._followed[session_id] = follower
        if len(self._followed) > _MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        follower.update()
        trace = follower.trace
        if not trace.lines and not trace.notes:
            trace.notes = [
                "nothing is in the event log yet; hooks-logging in the plan's hooks writes one"
            ]
        running = self._store.record(session_id).status == RUNNING
        return {**page_data(trace, after=after), "running": running}


def trace_routes(store: SessionIndex) -> list[Route]:
    """Return the page, and the route for the rows that changed since its last request."""
    traces = _Traces(store)
    return [
        Route(TRACE_PAGE, traces.send_page, methods=["GET"]),
        Route("/api/sessions/{session_id}/trace", traces.send_changes, methods=["GET"]),
    ]


def trace_application(store: SessionIndex, token: str) -> ASGIApp:
    """Return an application with only these routes, for this machine."""
    app = Starlette(routes=trace_routes(store), exception_handlers=handlers)
    return guarded(app, token=token, hosts=LOOPBACK_HOSTS, free_paths=(TRACE_PAGE,))


TURNS_PAGE: Final = "/turns"
_MAX_TURNS: Final = 200
_TURNS_FILES: Final = {
    TURNS_PAGE: ("turns.html", "text/html; charset=utf-8"),
    "/turns.js": ("turns.js", "text/javascript; charset=utf-8"),
    "/chat.css": ("chat.css", "text/css; charset=utf-8"),
}


def turns_application(engine: Any, token: str) -> ASGIApp:
    """Return an application with the page of an engine's turns, for this machine.

    Args:
        engine: The `DurableEngine`.
        token: The token that every request except the first carries. It follows ``#`` in the
            address of the page.
    """

    async def send_list(request: Request) -> Response:
        try:
            turns = await engine.list(
                state=request.query_params.get("state") or None, limit=_MAX_TURNS
            )
        except ValueError as error:
            raise Problem(400, str(error), code="invalid_request", param="state") from error
        counts = attrs.asdict(await engine.counts())
        return JSONResponse(
            {"turns": [attrs.asdict(turn) for turn in turns], "counts": counts, "now": time.time()}
        )

    async def send_turn(request: Request) -> Response:
        return JSONResponse(attrs.asdict(await engine.status(request.path_params["turn_id"])))

    def acting(do: Callable[[str], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Response:
            await do(request.path_params["turn_id"])
            return await send_turn(request)

        return act

    async def refuse(request: Request, error: Exception) -> Response:
        is_unknown = isinstance(error, LookupError)
        problem = (
            Problem(404, str(error), code="turn_not_found") if is_unknown else problem_of(error)
        )
        return problem.response()

    routes = [
        *file_routes(_TURNS_FILES),
        Route("/api/turns", send_list, methods=["GET"]),
        Route("/api/turns/{turn_id}", send_turn, methods=["GET"]),
        Route("/api/turns/{turn_id}/stop", acting(engine.stop), methods=["POST"]),
        Route("/api/turns/{turn_id}/resume", acting(engine.resume), methods=["POST"]),
        Route("/api/turns/{turn_id}/release", acting(engine.release), methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={**handlers, AmplifierError: refuse})
    return guarded(app, token=token, hosts=LOOPBACK_HOSTS, free_paths=tuple(_TURNS_FILES))
