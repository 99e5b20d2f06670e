"""``amplifier acp``: an agent for an editor, over standard input and output."""

from __future__ import annotations

import anyio
import attrs

from amplifier.cli.core.backend import require_backend
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.servers.acp import serve, taken_standard_streams

from .served_sessions import ServedSessions
from .signals import until_signal

__all__ = ["EditorRequest", "serve_editor"]


@attrs.frozen(kw_only=True)
class EditorRequest:
    """What the user asked for: the options of the command that are those of ``amplifier run``."""

    store: SessionStore
    options: dict[str, object]
    backend: str = "asyncio"
    debug: bool = False


def serve_editor(request: EditorRequest) -> int:
    """Serve one editor and return the exit code."""
    require_backend(request.backend)
    with taken_standard_streams() as protocol:
        # Made now: what it takes for standard output is standard error from here on.
        display = Display(StandardStreams(), "text", quiet=True)
        install_log_handler(display, debug=request.debug)
        lost: OSError | None = None

        async def serve_client() -> None:
            nonlocal lost
            sessions = await ServedSessions.prepare(request.store, display, backend=request.backend, **request.options)
            lost = await serve(protocol, sessions)

        async def main() -> int:
            ended_by = await until_signal(serve_client)
            if ended_by is not None:
                return 128 + ended_by
            return Exit.OK if lost is None else Exit.BROKEN_PIPE

        home = request.store.root.parent
        with answer_task_requests(running_folder(home), "acp", request.backend, display):
            return anyio.run(main, backend=request.backend)
