"""``amplifier acp``: an agent for an editor that speaks the Agent Client Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from amplifier.cli.agent.chat_commands import own_commands
from amplifier.cli.agent.served_sessions import ServedSessions
from amplifier.cli.agent.signals import run_observed, until_signal
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.terminal.display import Display, install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.servers.acp import serve, taken_standard_streams

from .shared_options import GlobalOptions, agent_options, open_store, plan_option


@click.command()
@plan_option
@agent_options
@click.pass_obj
def acp(global_options: GlobalOptions, /, backend: str, plan: Path | None, **options: Any) -> int:
    """Serve an editor over standard input and output.

    The editor starts this command and speaks the Agent Client Protocol (version 1) with it. Nothing else is written to standard
    output; messages for people go to standard error. It ends when the editor closes standard input.

    Exit codes: 0 the editor has closed the connection, 2 it could not begin, 130, 143 and 129 ended by SIGINT, SIGTERM and SIGHUP,
    141 the editor stopped reading.
    """
    store = open_store(writable=True)
    plan = None if plan is None else plan.absolute()
    with taken_standard_streams() as protocol:
        # Made now: what it takes for standard output is standard error from here on.
        display = Display(StandardStreams(), "text", quiet=True)
        install_log_handler(display, debug=global_options.debug)
        lost: OSError | None = None

        async def serve_client() -> None:
            nonlocal lost
            sessions = await ServedSessions.prepare(store, display, backend=backend, plan=plan, **options)
            lost = await serve(
                protocol,
                sessions.make,
                storage=store,
                check=sessions.check,
                commands=own_commands,
                has_mcp=sessions.has_mcp,
            )

        async def main() -> int:
            ended_by = await until_signal(serve_client)
            if ended_by is not None:
                return 128 + ended_by
            return Exit.OK if lost is None else Exit.BROKEN_PIPE

        return run_observed(main, "acp", display, backend=backend, otel=options["otel"])
