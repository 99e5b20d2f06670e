"""``amplifier mcp``: what MCP servers offer, a call by hand, the servers of other hosts, an agent as a server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click

from amplifier._json import redact_text, visible_text
from amplifier._spelling import suggestion
from amplifier.cli.agent.mcp_servers import open_servers, read_servers, servers_of
from amplifier.cli.agent.plan_files import read_plan_file
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.terminal.tables import print_table
from amplifier.models import to_dict

from .lazy_group import LazyGroup
from .shared_options import PLAN_FILE, debug_option, json_option

__all__ = ["mcp"]

_LOGIN_SECONDS = 600.0

F = TypeVar("F", bound=Callable[..., Any])


def _plan_option(command: F) -> F:
    return click.option(
        "--plan",
        "file",
        type=PLAN_FILE,
        required=True,
        metavar="FILE",
        help="A mount plan with the module tool-mcp, or a file of another host with mcpServers.",
    )(command)


def _backend_option(command: F) -> F:
    return click.option(
        "--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The event loop to run on."
    )(command)


@click.group(cls=LazyGroup, lazy={"serve": "mcp_serve:serve"})
def mcp() -> None:
    """See what MCP servers offer, call their tools, use the servers of other hosts, serve an agent."""


class _Notices(logging.Handler):
    """Keeps the warnings of the module; those about failed servers are printed by the commands themselves."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        if record.name.startswith("amplifier.modules"):
            self.messages.append(record.getMessage())


def _run(function: Callable[[], Awaitable[int]], backend: str) -> int:
    notices = _Notices()
    logging.getLogger("amplifier").addHandler(notices)
    try:
        return anyio.run(function, backend=backend)
    finally:
        logging.getLogger("amplifier").removeHandler(notices)
        for message in dict.fromkeys(notices.messages):
            if message not in _PRINTED:
                click.echo(f"warning: {visible_text(message)}", err=True)
        _PRINTED.clear()


_PRINTED: set[str] = set()
"""Failures that the running command has printed."""


@mcp.command("list")
@click.argument("servers", nargs=-1, metavar="[SERVER]...")
@_plan_option
@_backend_option
@json_option
@debug_option
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
                _print_failures(status)
            return _code(status)

    return _run(run, backend)


@mcp.command("test")
@click.argument("servers", nargs=-1, metavar="[SERVER]...")
@_plan_option
@_backend_option
@json_option
@debug_option
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
            return _code(status)
        for each in status:
            if each["error"] is None:
                about = f"{each['server_info'].strip()}, protocol {each['protocol']}, {len(each['tools'])} tools"
                click.echo(
                    f"{click.style('✓', fg='green')} {each['server']}: {about}, ready in {each['seconds']:.2f} s"
                )
        _print_failures(status)
        click.echo(f"opened and closed in {closed:.2f} s", err=True)
        return _code(status)

    return _run(run, backend)


@mcp.command("call")
@click.argument("server")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON]...")
@_plan_option
@_backend_option
@json_option
@debug_option
def call_tool(server: str, tool: str, arguments: tuple[str, ...], file: Path, backend: str, as_json: bool) -> int:
    """Call a TOOL of a SERVER and print its result; no permission is asked for.

    TOOL is the server's name for the tool, or the one in the plan. Arguments are NAME=VALUE, where a VALUE that is JSON is read as JSON unless
    the tool wants a text, or one JSON object. The time goes to standard error. The exit code is 1 if the call fails.
    """
    given = _read_arguments(arguments)

    async def run() -> int:
        async with open_servers(read_servers(file), (server,)) as opened:
            _require_open(opened.status())
            tools = {name: each for each in opened.tools(server) for name in (each.name, _own_name(each))}
            if tool not in tools:
                known = ", ".join(sorted(_own_name(each) for each in opened.tools(server))) or "none"
                raise CommandError(f"server {server!r} has no tool {tool!r}{suggestion(tool, tools)} It has: {known}")
            started = time.monotonic()
            result = await tools[tool].execute(_typed(given, tools[tool].input_schema))
            seconds = time.monotonic() - started
        if as_json:
            click.echo(json.dumps({**to_dict(result), "seconds": round(seconds, 3)}, indent=2))
        elif result.success:
            click.echo(visible_text(result.get_serialized_output()))
            click.echo(f"{seconds:.3f} s", err=True)
        else:
            raise CommandError(str(result.error["message"]), exit_code=Exit.FAILED)
        return Exit.OK if result.success else Exit.FAILED

    return _run(run, backend)


@mcp.command("login")
@click.argument("server")
@_plan_option
@_backend_option
@debug_option
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
            _require_open([status])
        click.echo(f"{status['server']}: logged in, {len(status['tools'])} tools")
        return Exit.OK

    return _run(run, backend)


@mcp.command("import")
@click.argument("file", type=PLAN_FILE)
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="The form of the output.")
@debug_option
def import_servers(file: Path, form: str) -> None:
    """Print the servers in FILE, which another host uses (an object mcpServers), as a section of a mount plan.

    Variables like ${env:NAME} become ${NAME}. Secrets that are written out in the file stay in it; a note on standard error names them.
    """
    from amplifier.modules.tool_mcp import read_mcp_options  # noqa: PLC0415  # only this command needs it

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


def _read_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            given = json.loads(words[0])
        except ValueError as error:
            raise CommandError(f"the arguments are not valid JSON: {error}") from None
        if isinstance(given, dict):
            return given
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"{word!r} is no argument; expected NAME=VALUE, or one JSON object")
        arguments[name] = _Text(value)
    return arguments


class _Text(str):
    """A value as it was written."""

    __slots__ = ()


def _typed(given: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments with values read as JSON where the tool does not want a text."""
    properties = schema.get("properties") or {}
    return {
        name: _value(value, properties.get(name)) if isinstance(value, _Text) else value
        for name, value in given.items()
    }


def _value(written: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return str(written)
    try:
        return json.loads(written)
    except ValueError:
        return str(written)


def _own_name(tool: Any) -> str:
    """The server's name for a tool."""
    offered = getattr(tool, "offered", None)
    return tool.name.removeprefix(f"{tool.server}_") if offered is None else str(offered.name)


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


def _print_failures(status: list[dict[str, Any]]) -> None:
    for each in status:
        if each["error"] is not None:
            _PRINTED.add(each["error"])
            click.echo(f"{click.style('✗', fg='red')} {visible_text(each['error'])}", err=True)


def _require_open(status: list[dict[str, Any]]) -> None:
    for each in status:
        if each["error"] is not None:
            _PRINTED.add(each["error"])
            raise CommandError(each["error"], exit_code=Exit.FAILED)


def _code(status: list[dict[str, Any]]) -> int:
    return Exit.FAILED if any(each["error"] is not None for each in status) else Exit.OK
