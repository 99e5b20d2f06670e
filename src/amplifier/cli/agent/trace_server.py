"""``amplifier session trace --live``: a local server whose page shows what a session does while it runs."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
import webbrowser
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from amplifier._programs import with_safe_search_path
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.sessions.store import SessionStore
from amplifier.loading._installed import require_backend
from amplifier.servers._access import LOOPBACK_HOSTS
from amplifier.servers.http import run_server
from amplifier.servers.http._guard import Guard
from amplifier.store import RUNNING
from amplifier.tracing import live_page, live_policy, page_data
from amplifier.tracing._sessions import SessionFollower

from .signals import until_signal

__all__ = ["follow_session"]


class TraceApplication:
    """The page, and the rows that changed since the page asked last.

    Args:
        store: The stored sessions.
        session_id: The session to follow.
        token: What requests for rows have to carry.
    """

    def __init__(self, store: SessionStore, session_id: str, token: str) -> None:
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


def follow_session(store: SessionStore, session_id: str, *, backend: str, open_browser: bool) -> int:
    """Serve the page until a signal comes; returns the exit code."""
    require_backend(backend)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return anyio.run(_serve, store, session_id, listening, open_browser, backend=backend)


async def _serve(store: SessionStore, session_id: str, listening: socket.socket, open_browser: bool) -> int:
    token = secrets.token_urlsafe(32)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/#token={token}"
    app = TraceApplication(store, session_id, token)
    stop = anyio.Event()

    async def serve() -> None:
        print(f"Following session {session_id}: {address}\nCtrl-C ends it.", flush=True)
        if open_browser:
            # A browser in the terminal returns when the user leaves it; the end of this process does not wait for that.
            threading.Thread(target=_open_browser, args=(address,), name="open the browser", daemon=True).start()
        await run_server(app, listening, stop)

    ended_by = await until_signal(serve, stop.set)
    return Exit.OK if ended_by is None or ended_by is signal.SIGTERM else 128 + ended_by


def _open_browser(address: str) -> None:
    with with_safe_search_path():
        is_opened = webbrowser.open(address)
    if not is_opened:
        print("No browser could be started; open the address yourself.", file=sys.stderr, flush=True)
