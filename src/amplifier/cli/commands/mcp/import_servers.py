"""``amplifier mcp import``: the servers of another host as a section of a mount plan."""

from __future__ import annotations

import json
from pathlib import Path

import click

from amplifier._json import redact_text
from amplifier.cli.agent.mcp_servers import servers_of
from amplifier.cli.agent.plan_files import read_plan_file
from amplifier.cli.core.exit_codes import CommandError
from amplifier.modules.tools.mcp import read_mcp_options

from ..shared_options import PLAN_FILE, debug_option

__all__ = ["import_servers"]


@click.command("import")
@click.argument("file", type=PLAN_FILE)
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="The form of the output.")
@debug_option
def import_servers(file: Path, form: str) -> None:
    """Print the servers in FILE, which another host uses (an object mcpServers), as a section of a mount plan.

    Variables like ${env:NAME} become ${NAME}. Secrets that are written out in the file stay in it; a note on standard error names them.
    """
    servers = servers_of(read_plan_file(file))
    if servers is None:
        raise CommandError(f"{file}: there is no object mcpServers in it")
    read_mcp_options({"servers": servers})
    for name, server in servers.items():
        for section in ("env", "headers"):
            for key, value in (server.get(section) or {}).items():
                if "${" not in value and redact_text(f"{key}: {value}") != f"{key}: {value}":
                    click.echo(
                        f"note: {name}.{section}.{key} is a secret in plain text; use ${{NAME}} instead", err=True
                    )
    made = {"tools": [{"module": "tool-mcp", "config": {"servers": servers}}]}
    if form == "json":
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
        return
    import yaml  # noqa: PLC0415  # belongs to an extra

    click.echo(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), nl=False)
