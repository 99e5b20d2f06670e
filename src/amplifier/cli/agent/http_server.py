"""``amplifier serve``: an agent behind HTTP."""

from __future__ import annotations

import ipaddress
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

from amplifier.cli.core.backend import require_backend
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.kernel import AmplifierSession
from amplifier.serve import Limits, SessionRequest, application, run_server

from .approvals import DenyEverything
from .served_sessions import ServedSessions
from .signals import handled_signals

__all__ = ["ServeRequest", "serve_http"]

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


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
    hosts = _hosts(request)
    listening = _bind(request.host, request.port)
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
        if wanted.session_id is None:
            return sessions.make_temporary(directory, DenyEverything(display))
        approvals = wanted.approvals or DenyEverything(display)
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
    if not _is_loopback(request.host):
        print("Other machines can reach this server, and the traffic is not encrypted.", file=sys.stderr)


def _hosts(request: ServeRequest) -> list[str]:
    """The names under which the server may be reached.

    Raises:
        CommandError: Without a token the server would be open to other machines, or no request could reach it.
    """
    if _is_loopback(request.host):
        return [*_LOOPBACK_NAMES, *request.allowed_hosts]
    if request.token == "":
        raise CommandError(
            "--no-token is possible on this machine only (--host 127.0.0.1): anyone could run the agent's tools"
        )
    if request.host in ("0.0.0.0", "::") and not request.allowed_hosts:
        raise CommandError(
            f"--host {request.host} needs --allow-host with the names under which clients reach the server"
        )
    own = f"[{request.host}]" if ":" in request.host else request.host
    return [*_LOOPBACK_NAMES, own, *request.allowed_hosts]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise CommandError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
