"""HTTP servers of the command line: ``serve``, ``ui``, ``session trace --live``, ``turns page``."""

from __future__ import annotations

import html
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from starlette.types import ASGIApp

from amplifier._internal.programs import open_in_browser
from amplifier._internal.regular_files import replace_file
from amplifier.cli._exit_codes import Exit
from amplifier.cli._sessions import SessionStore
from amplifier.cli.terminal.display import Display, install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.loading.loader import require_backend
from amplifier.servers import SessionRequest
from amplifier.servers.access import address_of, listen_on, reachability_warning, server_names
from amplifier.servers.http import Limits, application
from amplifier.servers.http.application import run_asgi_server
from amplifier.servers.http.pages import (
    TRACE_PAGE,
    TURNS_PAGE,
    trace_application,
    turns_application,
)

from .served_sessions import ServedSessions
from .signals import run_observed, until_signal

if TYPE_CHECKING:
    from amplifier.durable import DurableEngine

T = TypeVar("T")


def serve_http(
    store: SessionStore,
    plan: Path | None,
    *,
    token: str | None,
    backend: str,
    debug: bool,
    **options: Any,
) -> int:
    """Serve until a signal arrives, and return the exit code.

    Args:
        store: The stored sessions.
        plan: The user's own plan file, or None for the default plan.
        token: The token. None generates one, and an empty text requires none.
        backend: The event loop.
        debug: True shows tracebacks and the library's log.
        options: The other options of the command.
    """
    hosts = server_names(options["host"], options["hosts"], has_token=token != "")
    listening = listen_on(options["host"], options["port"])
    with listening:
        display = Display(StandardStreams(), "text")
        install_log_handler(display, debug=debug)

        async def serve() -> int:
            choice = {name: options[name] for name in ("provider", "model", "otel")}
            sessions = await ServedSessions.prepare(
                store, display, backend=backend, plan=plan, **choice
            )
            return await _serve(sessions, listening, hosts, token, options)

        return run_observed(
            serve, "serve", display, backend=backend, otel=options["otel"], is_server=True
        )


async def _serve(
    sessions: ServedSessions,
    listening: socket.socket,
    hosts: list[str],
    token: str | None,
    options: dict[str, Any],
) -> int:
    async with sessions.make(SessionRequest()) as first:
        # Report problems with the provider now, not to the first client.
        sessions.check(first)
    generated = token is None
    token = secrets.token_urlsafe(32) if token is None else token or None

    app = application(
        sessions.make,
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
        check=sessions.check,
        reports=sessions.store.reports,
    )
    # Standard output receives the address, and a generated token, which is secret.
    address = address_of(listening, options["host"])
    page = f"{address}/#token={token}" if generated else address
    lines = [f"Serving on {address}", f"Chat page: {page}", f"OpenAI API: {address}/v1"]
    lines += [f"Token: {token}"] if generated else []
    shown = page if options["open_browser"] else None

    async def shut_down() -> None:
        if running := app.describe_running():
            print(running, file=sys.stderr, flush=True)
        await app.shut_down()

    return await _run(app, listening, lines, shown, options["host"], shut_down)


def follow_session(store: SessionStore, session_id: str, **options: Any) -> int:
    """Serve the page of a session until a signal arrives, and return the exit code."""
    about, page = f"Following session {session_id}", f"{TRACE_PAGE}#token={{}}&traced={session_id}"
    return _serve_page(nullcontext(store), trace_application, about, page, **options)


def serve_turns(engine: AbstractAsyncContextManager[DurableEngine], **options: Any) -> int:
    """Serve the page of an engine's turns until a signal arrives, and return the exit code."""
    return _serve_page(engine, turns_application, "Turns", f"{TURNS_PAGE}#token={{}}", **options)


def _serve_page(
    source: AbstractAsyncContextManager[T],
    make: Callable[[T, str], ASGIApp],
    about: str,
    page: str,
    *,
    backend: str,
    open_browser: bool,
) -> int:
    """Serve one page on this machine, with a generated token in its address."""
    require_backend(backend)

    async def serve() -> int:
        token = secrets.token_urlsafe(32)
        address = address_of(listening, "127.0.0.1") + page.format(token)
        async with source as opened:
            lines = [f"{about}: {address}", "Ctrl-C ends it."]
            return await _run(
                make(opened, token), listening, lines, address if open_browser else None
            )

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return anyio.run(serve, backend=backend)


async def _run(
    app: ASGIApp,
    listening: socket.socket,
    lines: list[str],
    page: str | None,
    host: str = "127.0.0.1",
    shut_down: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
) -> int:
    """Print the lines, open the page in the browser if there is one, and serve until a signal."""
    with ExitStack() as stack:
        shown = None if page is None else stack.enter_context(_without_token(page))
        return await _serve_until_signal(app, listening, lines, shown, host, shut_down)


async def _serve_until_signal(
    app: ASGIApp,
    listening: socket.socket,
    lines: list[str],
    page: str | None,
    host: str,
    shut_down: Callable[[], Awaitable[None]],
) -> int:
    stop = anyio.Event()

    async def serve() -> None:
        print(*lines, sep="\n", flush=True)
        if (warning := reachability_warning(host)) is not None:
            print(warning, file=sys.stderr)
        if page is not None:
            # A browser in the terminal returns when the user leaves it. This process doesn't wait
            # for that at its end.
            threading.Thread(
                target=_open_browser, args=(page,), name="open the browser", daemon=True
            ).start()
        await run_asgi_server(app, listening, stop, shut_down)

    ended_by = await until_signal(serve, stop.set)
    return Exit.OK if ended_by is None or ended_by is signal.SIGTERM else 128 + ended_by


_REDIRECT: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>amplifier</title>
<p><a href="{address}">Open the page</a>
"""


@contextmanager
def _without_token(page: str) -> Iterator[str]:
    """Yield an address for a browser's command line, which every user of the machine can read.

    For a page with a token, it is a file that redirects to the page and that only this user can
    read. It exists until the block exits.
    """
    if "#" not in page:
        yield page
        return
    with tempfile.TemporaryDirectory(prefix="amplifier-") as folder:
        file = Path(folder, "open.html")
        replace_file(file, _REDIRECT.format(address=html.escape(page)).encode())
        yield file.as_uri()


def _open_browser(address: str) -> None:
    if not open_in_browser(address):
        message = "No browser could be started; open the address yourself."
        print(message, file=sys.stderr, flush=True)
