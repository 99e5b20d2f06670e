"""``amplifier acp``: an agent for an editor that speaks the Agent Client Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from amplifier.cli.sessions.home_folder import require_writable

from .shared_options import GlobalOptions, agent_options, open_store, plan_option

__all__ = ["acp"]


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
    from amplifier.cli.agent.editor import EditorRequest, serve_editor  # noqa: PLC0415  # --help does not need it

    store = open_store()
    require_writable(store.root)
    options["plan"] = None if plan is None else plan.absolute()
    return serve_editor(EditorRequest(store=store, backend=backend, options=options, debug=global_options.debug))
