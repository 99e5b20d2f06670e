"""``amplifier mcp list``, ``test`` and ``login``: what the servers of a file offer, and whether they can be used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from amplifier._json import visible_text
from amplifier.cli.agent.mcp_servers import open_servers, read_servers
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.terminal.output import print_table

from .running import exit_code, options_of_all_servers, print_failures, require_open, run_command, server_options

__all__ = ["list_tools", "login", "test_servers"]

_LOGIN_SECONDS = 600.0


@click.command("list")
@options_of_all_servers
def list_tools(servers: tuple[str, ...], file: Path, backend: str, as_json: bool) -> int:
    """List the tools of every SERVER, or of all servers.

    The exit code is 1 if a server fails.
    """

    async def run() -> int:
        async with open_servers(read_servers(file), servers) as opened:
            status = opened.status()
            tools = {each["server"]: opened.tools(each["server"]) for each in status}
            if as_json:
                listed = [{**each, "tools": [_described(tool) for tool in tools[each["server"]]]} for each in status]
                click.echo(json.dumps(listed, indent=2))
            else:
                rows = [
                    [each["server"], tool.name, _hints(tool), _first_line(tool.description)]
                    for each in status
                    for tool in tools[each["server"]]
                ]
                print_table(["server", "tool", "hints", "what it does"], rows)
                print_failures(status)
            return exit_code(status)

    return run_command(run, backend)


@click.command("test")
@options_of_all_servers
def test_servers(servers: tuple[str, ...], file: Path, backend: str, as_json: bool) -> int:
    """Start every SERVER, or all servers, and print how that went and how long it took.

    The exit code is 1 if a server fails.
    """

    async def run() -> int:
        started = time.monotonic()
        async with open_servers(read_servers(file), servers) as opened:
            status = opened.status()
        closed = time.monotonic() - started
        if as_json:
            click.echo(json.dumps(status, indent=2))
            return exit_code(status)
        for each in status:
            if each["error"] is None:
                about = f"{each['server_info'].strip()}, protocol {each['protocol']}, {len(each['tools'])} tools"
                click.echo(
                    f"{click.style('✓', fg='green')} {each['server']}: {about}, ready in {each['seconds']:.2f} s"
                )
        print_failures(status)
        click.echo(f"opened and closed in {closed:.2f} s", err=True)
        return exit_code(status)

    return run_command(run, backend)


@click.command("login")
@click.argument("server")
@server_options
def login(server: str, file: Path, backend: str) -> int:
    """Log in to a remote SERVER whose plan has `oauth`: prints a page to open in a browser, and waits.

    The tokens are kept in a file that only you can read; sessions use and renew them.
    """

    async def show(address: str) -> None:
        click.echo(f"Open this page in a browser on this machine:\n  {visible_text(address, multiline=False)}")

    async def run() -> int:
        config = read_servers(file)
        async with open_servers(config, (server,), login=show, open_timeout=_LOGIN_SECONDS) as opened:
            (status,) = opened.status()
            require_open([status])
        click.echo(f"{status['server']}: logged in, {len(status['tools'])} tools")
        return Exit.OK

    return run_command(run, backend)


def _described(tool: Any) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "annotations": tool.annotations,
        "input_schema": tool.input_schema,
    }


def _hints(tool: Any) -> str:
    words = {"readOnlyHint": "read-only", "destructiveHint": "destructive", "openWorldHint": "open world"}
    return ", ".join(word for hint, word in words.items() if tool.annotations.get(hint) is True)


def _first_line(text: str) -> str:
    return visible_text(text.strip().splitlines()[0] if text.strip() else "", multiline=False)
