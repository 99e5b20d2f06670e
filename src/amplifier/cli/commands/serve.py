"""``amplifier serve``, ``ui`` and ``acp``: an agent over HTTP, in a browser, in an editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .shared_options import (
    PLAN_FILE,
    GlobalOptions,
    agent_options,
    http_options,
    import_http_server,
    open_store,
    plan_option,
    read_token,
)


@click.command()
@click.argument("plan", required=False, type=PLAN_FILE)
@agent_options
@http_options(port=8642)
@click.option(
    "--max-sessions",
    type=click.IntRange(1),
    metavar="N",
    default=100,
    help="Sessions open at once.",
)
@click.option(
    "--max-turns", type=click.IntRange(1), metavar="N", default=50, help="Turns running at once."
)
@click.option(
    "--max-body",
    type=click.IntRange(1),
    metavar="BYTES",
    default=4 * 2**20,
    help="The largest request.",
)
@click.option(
    "--shutdown-seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    default=10.0,
    help="Seconds for turns to end at shutdown.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@click.pass_obj
def serve(global_options: GlobalOptions, /, plan: Path | None, backend: str, **options: Any) -> Any:
    """Serve an agent over HTTP: a chat page, the OpenAI API, AG-UI and a session API.

    PLAN is a mount plan (YAML, TOML, JSON). The default is the plan of `amplifier run`. Every
    request needs a token, which is generated and printed unless --token-file or the variable
    AMPLIFIER_SERVE_TOKEN has one.

    Exit codes: 0 stopped by SIGTERM, 130 by Ctrl-C, 129 by SIGHUP, 2 it could not begin.
    """
    server = import_http_server("amplifier serve")
    store = open_store(writable=True)
    plan = None if plan is None else plan.absolute()
    token = read_token(options["token_file"], none=options["no_token"])
    return server.serve_http(
        store, plan, token=token, backend=backend, debug=global_options.debug, **options
    )


@click.command()
@agent_options
@click.pass_context
def ui(context: click.Context, /, **options: Any) -> Any:
    """Open the chat page of the agent of `amplifier run` in a browser.

    The page also has stored sessions, their traces, tools and conformance reports. The command is
    `amplifier serve --open` at any free port, and Ctrl-C ends it.
    """
    return context.invoke(serve, **options, port=0, open_browser=True)


@click.command()
@plan_option
@agent_options
@click.pass_obj
def acp(global_options: GlobalOptions, /, backend: str, plan: Path | None, **options: Any) -> int:
    """Serve an editor over standard input and output.

    The editor starts this command and uses the Agent Client Protocol (version 1). Nothing else is
    written to standard output, and messages for people go to standard error. The command ends when
    the editor closes standard input.

    Exit codes: 0 the editor has closed the connection, 2 it could not start, 130, 143 and 129 ended
    by SIGINT, SIGTERM and SIGHUP, 141 the editor stopped reading.
    """
    # ``--help`` doesn't need it.
    from amplifier.cli.agent.served_sessions import serve_editor  # noqa: PLC0415

    store = open_store(writable=True)
    plan = None if plan is None else plan.absolute()
    return serve_editor(store, plan, backend=backend, debug=global_options.debug, **options)
