"""What stored sessions did, as a page that follows them while they run."""

from __future__ import annotations

from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from amplifier.store import RUNNING, SessionIndex
from amplifier.tracing import live_page, live_policy, page_data
from amplifier.tracing._sessions import SessionFollower

from .._access import LOOPBACK_HOSTS
from ._event_stream import event_number
from ._guard import guarded
from ._problems import Problem, handlers

TRACE_PAGE: Final = "/trace"
"""The page: the same for every session, which the address names behind ``#``, so it needs no token."""
_MOST_FOLLOWED: Final = 8


class _Traces:
    """The sessions whose pages are open; what was read of them is kept, so that a page gets what is new."""

    def __init__(self, store: SessionIndex) -> None:
        self._store = store
        self._followed: dict[str, SessionFollower] = {}
        self._reading = anyio.Lock()

    async def send_page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": live_policy()}
        return Response(live_page(), media_type="text/html; charset=utf-8", headers=headers)

    async def send_changes(self, request: Request) -> Response:
        session_id, after = request.path_params["session_id"], event_number(request.query_params.get("after"), "after")
        async with self._reading:  # several pages may be open
            return JSONResponse(await anyio.to_thread.run_sync(self._changes, session_id, after))

    def _changes(self, session_id: str, after: int) -> dict[str, Any]:
        if not self._store.exists(session_id):
            raise Problem(404, f"no session {session_id!r:.80} is stored", code="session_not_found")
        follower = self._followed.pop(session_id, None) or SessionFollower(self._store, session_id)
        self._followed[session_id] = follower  # the one used last is the last
        if len(self._followed) > _MOST_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        follower.update()
        trace = follower.trace
        if not trace.lines and not trace.notes:
            trace.notes = ["nothing is in the event log yet; hooks-logging in the plan's hooks writes one"]
        running = self._store.record(session_id).status == RUNNING
        return {**page_data(trace, after=after), "running": running}


def trace_routes(store: SessionIndex) -> list[Route]:
    """The page, and the rows of a session that changed since the page asked last."""
    traces = _Traces(store)
    return [
        Route(TRACE_PAGE, traces.send_page, methods=["GET"]),
        Route("/api/sessions/{session_id}/trace", traces.send_changes, methods=["GET"]),
    ]


def trace_application(store: SessionIndex, token: str) -> ASGIApp:
    """The routes alone, on this machine."""
    app = Starlette(routes=trace_routes(store), exception_handlers=handlers)
    return guarded(app, token=token, hosts=LOOPBACK_HOSTS, free_paths=(TRACE_PAGE,))
