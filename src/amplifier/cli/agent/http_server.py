"""``amplifier serve``: an agent behind HTTP."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession
from amplifier.loading._installed import require_backend
from amplifier.servers._access import address_of, listen_on, reachability_warning, server_names
from amplifier.servers.http import Limits, SessionRequest, application, run_server
from amplifier.tracing import export_traces
from amplifier.tracing._running_commands import answer_task_requests

from .approvals import DenyEverything
from .served_sessions import ServedSessions
from .signals import until_signal

__all__ = ["serve_http"]


def serve_http(
    store: SessionStore, plan: Path | None, *, token: str | None, backend: str, debug: bool, **options: Any
) -> int:
    """Serve until a signal comes; returns the exit code.

    Args:
        store: Where conversations are kept.
        plan: The user's own plan; the default plan if None.
        token: None to generate one; empty for none.
        options: Those of the command.
    """
    require_backend(backend)
    hosts = server_names(options["host"], options["hosts"], has_token=token != "")
    listening = listen_on(options["host"], options["port"])
    with listening:
        display = Display(StandardStreams(), "text")
        install_log_handler(display, debug=debug)

        async def serve() -> int:
            chosen = {name: options[name] for name in ("provider", "model", "otel")}
            sessions = await ServedSessions.prepare(store, display, backend=backend, plan=plan, **chosen)
            return await _serve(sessions, listening, hosts, token, options)

        with (
            answer_task_requests(running_folder(store.root.parent), "serve", backend, display.show_immediately),
            export_traces(options["otel"], partial(display.notice, level="warning")),
        ):
            return anyio.run(serve, backend=backend)


async def _serve(
    sessions: ServedSessions, listening: socket.socket, hosts: list[str], token: str | None, options: dict[str, Any]
) -> int:
    display = sessions.display
    directory = await anyio.to_thread.run_sync(Path.cwd)
    async with sessions.make_temporary(directory, DenyEverything(display)) as first:
        sessions.check(first)  # what is wrong with the provider is reported now, not to the first client
    generated = token is None
    token = secrets.token_urlsafe(32) if token is None else token or None

    def make(wanted: SessionRequest) -> AmplifierSession:
        approvals = wanted.approvals or DenyEverything(display)
        if wanted.session_id is None:
            return sessions.make_temporary(directory, approvals)
        return sessions.make(wanted.session_id, directory, {}, approvals, is_resumed=wanted.is_resumed)

    def check(session: AmplifierSession) -> None:
        try:
            sessions.check(session)
        except CommandError as error:
            raise AmplifierError(str(error)) from error
        if (record := sessions.records.pop(session.session_id, None)) is not None:
            sessions.store.write(record)  # from now on the server describes it

    app = application(
        make,
        token=token,
        limits=Limits(
            sessions=options["max_sessions"],
            turns=options["max_turns"],
            body_bytes=options["max_body"],
            shutdown_seconds=options["shutdown_seconds"],
        ),
        hosts=hosts,
        origins=options["origins"],
        storage=sessions.store,
        check=check,
    )
    stop = anyio.Event()

    async def serve() -> None:
        _announce(listening, options["host"], token if generated else None)
        await run_server(app, listening, stop)

    ended_by = await until_signal(serve, stop.set)
    return Exit.OK if ended_by is None or ended_by is signal.SIGTERM else 128 + ended_by


def _announce(listening: socket.socket, host: str, generated: str | None) -> None:
    """Print the address on standard output; the token only if no one else knows it."""
    address = address_of(listening, host)
    fragment = "" if generated is None else f"/#token={generated}"
    lines = [f"Serving on {address}", f"Chat page: {address}{fragment}", f"OpenAI API: {address}/v1"]
    if generated is not None:
        lines.append(f"Token: {generated}")
    print(*lines, sep="\n", flush=True)
    if (warning := reachability_warning(host)) is not None:
        print(warning, file=sys.stderr)
