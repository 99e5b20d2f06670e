"""``amplifier mcp serve``: an agent as an MCP server."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import click

from amplifier.cli.agent.default_plan import build_plan
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.core.installed_modules import installed_ids
from amplifier.kernel import AmplifierSession
from amplifier.mcp import serve as serve_agent

from ..shared_options import PLAN_FILE, complete_provider, debug_option

__all__ = ["serve"]


@click.command()
@click.argument("plan", type=PLAN_FILE)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), default="stdio", help="How clients reach the server."
)
@click.option("--host", default="127.0.0.1", help="For http: the address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="For http: the port; 0 for a free one.")
@click.option("-p", "--provider", metavar="NAME", shell_complete=complete_provider, help="As for `amplifier run`.")
@click.option("-m", "--model", metavar="NAME", help="As for `amplifier run`.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The event loop to run on.")
@debug_option
def serve(
    plan: Path,
    transport: Literal["stdio", "http"],
    host: str,
    port: int,
    provider: str | None,
    model: str | None,
    backend: str,
) -> int:
    """Serve the agent of PLAN to MCP clients, with one session for each client.

    The server has the tool `run`. Questions for permission are asked of the client's user. Whoever reaches the address of an HTTP server can
    use the agent: leave it on this machine, or put a server with authentication before it.
    """
    made = build_plan(installed_ids(), file=plan, provider=provider, model=model)
    for note in made.notes:
        click.echo(note, err=True)
    run = partial(
        serve_agent,
        lambda: AmplifierSession(made.plan),
        transport=transport,
        host=host,
        port=port,
        on_listening=lambda address: click.echo(f"listening on {address}", err=True),
    )
    ended: list[signal.Signals] = []

    async def main() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_at_a_signal, signals, group.cancel_scope, ended)
                await run()
                group.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    return 128 + ended[0] if ended else Exit.OK


async def _stop_at_a_signal(
    signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope, ended: list[signal.Signals]
) -> None:
    async for received in signals:
        ended.append(received)
        scope.cancel()
