"""``amplifier session trace --live``: a local server whose page shows what a session does while it runs."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
import webbrowser

import anyio
import anyio.to_thread

from amplifier._programs import with_safe_search_path
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.sessions.store import SessionStore
from amplifier.loading._installed import require_backend
from amplifier.servers.http import run_server
from amplifier.servers.http._trace import TraceApplication

from .signals import until_signal

__all__ = ["follow_session"]


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
