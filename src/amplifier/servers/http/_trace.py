"""The page that follows a stored session while it runs."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from amplifier.servers._access import LOOPBACK_HOSTS
from amplifier.store import RUNNING, SessionIndex
from amplifier.tracing import live_page, live_policy, page_data
from amplifier.tracing._sessions import SessionFollower

from ._guard import Guard

__all__ = ["TraceApplication"]


class TraceApplication:
    """The page, and the rows that changed since the page asked last.

    Args:
        store: The stored sessions.
        session_id: The session to follow.
        token: What requests for rows have to carry.
    """

    def __init__(self, store: SessionIndex, session_id: str, token: str) -> None:
        self._store = store
        self._session_id = session_id
        self._follower = SessionFollower(store, session_id)
        self._reading = anyio.Lock()
        routes = [Route("/", self._send_page), Route("/changes", self._send_changes)]
        app: ASGIApp = Starlette(routes=routes)
        self._app = Guard(app, token=token, hosts=LOOPBACK_HOSTS, origins=(), free_paths=("/",))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        await self._app(scope, receive, send)

    async def shut_down(self) -> None:
        """Nothing outlasts a request."""

    async def _send_page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": live_policy()}
        return Response(live_page(self._session_id), media_type="text/html; charset=utf-8", headers=headers)

    async def _send_changes(self, request: Request) -> Response:
        given = request.query_params.get("after", "0")
        after = int(given) if given.isdecimal() and len(given) < 16 else None
        if after is None:
            problem = f"after: expected the revision of an earlier answer, got {given!r:.80}"
            return JSONResponse({"error": {"message": problem}}, status_code=400)
        async with self._reading:  # several pages may be open
            changes = await anyio.to_thread.run_sync(self._changes, after)
        return JSONResponse(changes)

    def _changes(self, after: int) -> dict[str, Any]:
        self._follower.update()
        trace = self._follower.trace
        if not trace.lines and not trace.notes:
            trace.notes = ["nothing is in the event log yet; hooks-logging in the plan's hooks writes one"]
        running = self._store.record(self._session_id).status == RUNNING
        return {**page_data(trace, after=after), "running": running}
