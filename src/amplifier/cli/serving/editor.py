"""``amplifier acp``: an agent for an editor, over standard input and output."""

from __future__ import annotations

import signal

import anyio
import attrs

from amplifier.acp import serve, taken_standard_streams
from amplifier.cli.agent.signals import handled_signals
from amplifier.cli.core.backend import require_backend
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionStore
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import install_log_handler
from amplifier.cli.terminal.output import StandardStreams

from .served_sessions import ServedSessions

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

        async def main() -> int:
            ended_by: list[signal.Signals] = []
            lost: OSError | None = None
            with anyio.open_signal_receiver(*handled_signals()) as signals, anyio.CancelScope() as scope:

                async def watch() -> None:
                    async for received in signals:
                        ended_by.append(received)
                        scope.cancel()

                sessions = await ServedSessions.prepare(
                    request.store, display, backend=request.backend, **request.options
                )
                async with anyio.create_task_group() as group:
                    group.start_soon(watch)
                    lost = await serve(protocol, sessions)
                    group.cancel_scope.cancel()
            if ended_by:
                return 128 + ended_by[0]
            return Exit.OK if lost is None else Exit.BROKEN_PIPE

        home = request.store.root.parent
        with answer_task_requests(running_folder(home), "acp", request.backend, display):
            return anyio.run(main, backend=request.backend)
