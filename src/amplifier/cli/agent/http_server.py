"""``amplifier serve``: an agent behind HTTP."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier.cli.core.backend import require_backend
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession
from amplifier.servers._access import address_of, listen_on, reachability_warning, server_names
from amplifier.servers.http import Limits, SessionRequest, application, run_server

from .approvals import DenyEverything
from .served_sessions import ServedSessions
from .signals import until_signal

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
    hosts = server_names(request.host, request.allowed_hosts, has_token=request.token != "")
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
    async with sessions.make_temporary(directory, DenyEverything(display)) as first:
        sessions.check(first)  # what is wrong with the provider is said now, not to the first client
    generated = request.token is None
    token = secrets.token_urlsafe(32) if request.token is None else request.token or None

    def make(wanted: SessionRequest) -> AmplifierSession:
        approvals = wanted.approvals or DenyEverything(display)
        if wanted.session_id is None:
            return sessions.make_temporary(directory, approvals)
        made = sessions.make(wanted.session_id, directory, {}, approvals, is_resumed=wanted.is_resumed)
        sessions.records.pop(wanted.session_id, None)  # the server describes its sessions itself
        return made

    def check(session: AmplifierSession) -> None:
        try:
            sessions.check(session)
        except CommandError as error:
            raise AmplifierError(str(error)) from error

    app = application(
        make,
        token=token,
        limits=request.limits,
        hosts=hosts,
        origins=request.allowed_origins,
        storage=request.store,
        check=check,
    )
    stop = anyio.Event()

    async def serve() -> None:
        _announce(listening, request, token if generated else None)
        await run_server(app, listening, stop)

    ended_by = await until_signal(serve, stop.set)
    return Exit.OK if ended_by is None or ended_by is signal.SIGTERM else 128 + ended_by


def _announce(listening: socket.socket, request: ServeRequest, generated: str | None) -> None:
    """Print the address on standard output; the token only if no one else knows it."""
    address = address_of(listening, request.host)
    fragment = "" if generated is None else f"/#token={generated}"
    lines = [f"Serving on {address}", f"Chat page: {address}{fragment}", f"OpenAI API: {address}/v1"]
    if generated is not None:
        lines.append(f"Token: {generated}")
    print(*lines, sep="\n", flush=True)
    if (warning := reachability_warning(request.host)) is not None:
        print(warning, file=sys.stderr)
