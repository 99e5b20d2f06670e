"""``amplifier mcp serve``: an agent as an MCP server."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import click

from amplifier.cli.agent.default_plan import build_plan
from amplifier.cli.agent.signals import until_signal
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.core.installed_modules import installed_ids
from amplifier.kernel import AmplifierSession
from amplifier.servers._access import listen_on, reachability_warning, server_names
from amplifier.servers.mcp import serve as serve_agent

from ..shared_options import PLAN_FILE, agent_options, http_options, read_token

__all__ = ["serve"]


@click.command()
@click.argument("plan", type=PLAN_FILE)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), default="stdio", help="How clients reach the server."
)
@http_options(port=8000)
@agent_options
def serve(
    plan: Path, transport: Literal["stdio", "http"], provider: str | None, model: str | None, backend: str, **http: Any
) -> int:
    """Serve the agent of PLAN to MCP clients, with one session for each client.

    The server has the tool `run`. Questions for permission are asked of the client's user. Over http every request needs a token, which
    is generated and printed to standard error unless --token-file or the variable AMPLIFIER_SERVE_TOKEN has one; the options about
    host, port, token and origins are for http only.
    """
    made = build_plan(installed_ids(), file=plan, provider=provider, model=model)
    for note in made.notes:
        click.echo(note, err=True)
    run = partial(serve_agent, lambda: AmplifierSession(made.plan), transport=transport)
    if transport == "http":
        run = partial(run, **_access(**http))
    ended_by = anyio.run(until_signal, run, backend=backend)
    return Exit.OK if ended_by is None else 128 + ended_by


def _access(
    *,
    host: str,
    port: int,
    token_file: Path | None,
    no_token: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
) -> dict[str, Any]:
    """Where the server listens and who may use it, as arguments of `serve_agent`."""
    given = read_token(token_file, none=no_token)
    token = secrets.token_urlsafe(32) if given is None else given
    names = server_names(host, hosts, has_token=token != "")

    def announce(address: str) -> None:
        click.echo(f"listening on {address}", err=True)
        if given is None:
            click.echo(f"token: {token}", err=True)
        if (warning := reachability_warning(host)) is not None:
            click.echo(warning, err=True)

    return {
        "host": host,
        "listening": listen_on(host, port),
        "token": token,
        "hosts": names,
        "origins": origins,
        "on_listening": announce,
    }
