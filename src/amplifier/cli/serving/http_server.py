"""``amplifier serve``: an agent behind HTTP."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier.cli.agent.approvals import DenyEverything
from amplifier.cli.agent.signals import handled_signals
from amplifier.cli.core.backend import require_backend
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.kernel import AmplifierSession
from amplifier.serve import Limits, SessionRequest, application, run_server

from .http_access import listen_on, reachability_warning, server_names
from .served_sessions import ServedSessions

__all__ = ["ServeRequest", "serve_http"]


@attrs.frozen(kw_only=True)
class ServeRequest:
    """What the user asked for.

    Attributes:
        token: None to generate one; empty for none.
        allowed_hosts: More names under which the server is reached.
        allowed_origins: Other origins whose pages may use the server.
        options: Those of the plan: ``plan``, ``provider`` and ``model``.
    """

    store: SessionStore
    host: str
    port: int
    token: str | None
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    limits: Limits
    options: dict[str, Any]
    backend: str = "asyncio"
    debug: bool = False


def serve_http(request: ServeRequest) -> int:
    """Serve until a signal comes; returns the exit code."""
    require_backend(request.backend)
    hosts = server_names(request.host, request.token, request.allowed_hosts)
    listening = listen_on(request.host, request.port)
    with listening:
        display = Display(StandardStreams(), "text")
        install_log_handler(display, debug=request.debug)
        home = request.store.root.parent
        with answer_task_requests(running_folder(home), "serve", request.backend, display):
            return anyio.run(_serve, request, listening, hosts, display, backend=request.backend)


async def _serve(request: ServeRequest, listening: socket.socket, hosts: list[str], display: Display) -> int:
    sessions = await ServedSessions.prepare(request.store, display, backend=request.backend, **request.options)
    directory = await anyio.to_thread.run_sync(Path.cwd)
    generated = request.token is None
    token = secrets.token_urlsafe(32) if request.token is None else request.token or None

    def make(wanted: SessionRequest) -> AmplifierSession:
        approvals = wanted.approvals or DenyEverything(display)
        if wanted.session_id is None:
            return sessions.make_temporary(directory, approvals)
        made = sessions.make(wanted.session_id, directory, {}, approvals, is_resumed=wanted.is_resumed)
        sessions.records.pop(wanted.session_id, None)  # the server describes its sessions itself
        return made

    app = application(
        make,
        token=token,
        limits=request.limits,
        hosts=hosts,
        origins=request.allowed_origins,
        storage=request.store,
        check=sessions.check,
    )
    ended_by: list[signal.Signals] = []
    stop = anyio.Event()
    async with _signals(ended_by, stop):
        _announce(listening, request, token if generated else None)
        await run_server(app, listening, stop)
    return 128 + ended_by[0] if ended_by and ended_by[0] is not signal.SIGTERM else Exit.OK


@asynccontextmanager
async def _signals(ended_by: list[signal.Signals], stop: anyio.Event) -> AsyncIterator[None]:
    """The first signal stops the server, a second one does not wait for turns."""
    with anyio.open_signal_receiver(*handled_signals()) as signals:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for received in signals:
                    ended_by.append(received)
                    if stop.is_set():
                        group.cancel_scope.cancel()
                    stop.set()

            group.start_soon(watch)
            yield
            group.cancel_scope.cancel()


def _announce(listening: socket.socket, request: ServeRequest, generated: str | None) -> None:
    """Print the address on standard output; the token only if no one else knows it."""
    port = listening.getsockname()[1]
    host = f"[{request.host}]" if ":" in request.host else request.host
    address = f"http://{host}:{port}"
    fragment = "" if generated is None else f"/#token={generated}"
    lines = [f"Serving on {address}", f"Chat page: {address}{fragment}", f"OpenAI API: {address}/v1"]
    if generated is not None:
        lines.append(f"Token: {generated}")
    print(*lines, sep="\n", flush=True)
    if (warning := reachability_warning(request.host)) is not None:
        print(warning, file=sys.stderr)
