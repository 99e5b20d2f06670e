"""``amplifier mcp``: what MCP servers offer, a call by hand, the servers of other hosts, an agent as a server."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import click

from amplifier._json import redact_text, visible_text
from amplifier._spelling import suggestion
from amplifier.cli.agent.chat_commands import own_commands
from amplifier.cli.agent.configuration import change_user_file, read_configuration
from amplifier.cli.agent.default_plan import build_plan, with_traces
from amplifier.cli.agent.keys import load_keys
from amplifier.cli.agent.mcp_servers import open_servers, read_servers, servers_of, with_variables_of_plans
from amplifier.cli.agent.plan_files import read_plan_file
from amplifier.cli.agent.signals import until_signal
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import LogNotices, install_log_handler
from amplifier.cli.terminal.output import StandardStreams, print_table
from amplifier.kernel import AmplifierSession
from amplifier.loading._installed import installed_ids
from amplifier.models import to_dict
from amplifier.modules.tools.mcp import read_mcp_options
from amplifier.plan import expand_variables

from .lazy_group import LazyGroup
from .shared_options import (
    PLAN_FILE,
    Decorator,
    add_options,
    agent_options,
    backend_option,
    http_options,
    json_option,
    read_token,
)


@click.group(cls=LazyGroup)
def mcp() -> None:
    """Add MCP servers, see what they offer, call their tools, use those of other hosts, serve an agent."""


def _servers(file: Path | None) -> dict[str, Any]:
    """The servers of a file, else those that the user and the project have configured."""
    for problem in load_keys():
        click.echo(problem, err=True)
    if file is not None:
        return read_servers(file)
    found = read_configuration(Path.cwd())
    for note in found.notes:
        click.echo(note, err=True)
    servers = found.below("mcpServers")
    if not servers:
        raise CommandError("no MCP server is configured; add one: amplifier mcp add NAME COMMAND… (or a URL)")
    return expand_variables({"servers": with_variables_of_plans(servers)}, os.environ)


@mcp.command("add", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...|URL")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable of the command; ${NAME} is yours.")
@click.option("-H", "--header", multiple=True, metavar="NAME=VALUE", help="A header for the URL.")
def add_server(name: str, command: tuple[str, ...], env: tuple[str, ...], header: tuple[str, ...]) -> None:
    """Add the server NAME to your configuration: a COMMAND with its arguments, or the URL of a remote one.

    Options come before NAME. `amplifier mcp test NAME` starts it. Every agent of the default plan has it from then on.
    """
    is_url = len(command) == 1 and command[0].startswith(("https://", "http://"))
    server: dict[str, Any] = {"url": command[0]} if is_url else {"command": command[0], "args": list(command[1:])}
    for key, pairs in (("env", env), ("headers", header)):
        if pairs:
            server[key] = {word.partition("=")[0]: word.partition("=")[2] for word in pairs}
    read_mcp_options({"servers": {name: server}})
    _note_secrets(name, server)
    click.echo(f"{name} is in {change_user_file('mcpServers', name, server)}; try it: amplifier mcp test {name}")


def _note_secrets(name: str, server: dict[str, Any]) -> None:
    for section in ("env", "headers"):
        for key, value in (server.get(section) or {}).items():
            if "${" not in value and redact_text(f"{key}: {value}") != f"{key}: {value}":
                click.echo(f"note: {name}.{section}.{key} is a secret in plain text; use ${{NAME}} instead", err=True)


@mcp.command("remove")
@click.argument("name")
def remove_server(name: str) -> None:
    """Remove the server NAME from your configuration."""
    click.echo(f"removed from {change_user_file('mcpServers', name, None)}")


server_options: Decorator = add_options(
    click.option(
        "--plan",
        "file",
        type=PLAN_FILE,
        metavar="FILE",
        help="A mount plan with the module tool-mcp, or a file of another host with mcpServers; else what is configured.",
    ),
    backend_option,
)
"""The options of every command that opens servers."""


options_of_all_servers: Decorator = add_options(
    click.argument("servers", nargs=-1, metavar="[SERVER]..."), server_options, json_option
)
"""The argument and the options of a command about all servers."""


def _run(function: Callable[[LogNotices], Awaitable[int]], backend: str) -> int:
    """Run a command to its exit code, then print the warnings that it has not printed itself."""
    log = install_log_handler(Display(StandardStreams()), debug=False)
    log.hold()
    try:
        return anyio.run(function, log, backend=backend)
    finally:
        log.show_held()


def _failures(status: Iterable[dict[str, Any]], log: LogNotices) -> list[str]:
    """Why servers failed, which is in the log as well."""
    found = [each["error"] for each in status if each["error"] is not None]
    for error in found:
        log.pop_about(error.partition("\n")[0])
    return found


def _print_failures(status: Iterable[dict[str, Any]], log: LogNotices) -> int:
    """Print why servers failed; returns the exit code."""
    failures = _failures(status, log)
    for error in failures:
        click.echo(f"{click.style('✗', fg='red')} {visible_text(error)}", err=True)
    return Exit.FAILED if failures else Exit.OK


_LOGIN_SECONDS = 600.0


@mcp.command("list")
@options_of_all_servers
def list_tools(servers: tuple[str, ...], file: Path | None, backend: str, as_json: bool) -> int:
    """List the tools of every SERVER, or of all servers.

    The exit code is 1 if a server fails.
    """

    async def run(log: LogNotices) -> int:
        async with open_servers(_servers(file), servers) as opened:
            if as_json:
                names = ("name", "description", "annotations", "input_schema")
                listed = [
                    {**each, "tools": [{name: getattr(tool, name) for name in names} for tool in tools]}
                    for each, tools in opened
                ]
                click.echo(json.dumps(listed, indent=2))
            else:
                rows = [
                    [each["server"], tool.name, _hints(tool), tool.description.strip().partition("\n")[0]]
                    for each, tools in opened
                    for tool in tools
                ]
                print_table(["server", "tool", "hints", "what it does"], rows)
            return _print_failures((each for each, _ in opened), log)

    return _run(run, backend)


@mcp.command("test")
@options_of_all_servers
def test_servers(servers: tuple[str, ...], file: Path | None, backend: str, as_json: bool) -> int:
    """Start every SERVER, or all servers, and print how that went and how long it took.

    The exit code is 1 if a server fails.
    """

    async def run(log: LogNotices) -> int:
        started = time.monotonic()
        async with open_servers(_servers(file), servers) as opened:
            status = [each for each, _ in opened]
        closed = time.monotonic() - started
        if as_json:
            click.echo(json.dumps(status, indent=2))
        for each in [] if as_json else status:
            if each["error"] is None:
                about = f"{each['server_info'].strip()}, protocol {each['protocol']}, {len(each['tools'])} tools"
                click.echo(
                    f"{click.style('✓', fg='green')} {each['server']}: {about}, ready in {each['seconds']:.2f} s"
                )
        click.echo(f"opened and closed in {closed:.2f} s", err=True)
        return _print_failures(status, log)

    return _run(run, backend)


@mcp.command("login")
@click.argument("server")
@server_options
def login(server: str, file: Path | None, backend: str) -> int:
    """Log in to a remote SERVER whose plan has `oauth`: prints a page to open in a browser, and waits.

    The tokens are kept in a file that only you can read; sessions use and renew them.
    """

    async def show(address: str) -> None:
        click.echo(f"Open this page in a browser on this machine:\n  {visible_text(address, multiline=False)}")

    async def run(log: LogNotices) -> int:
        config = _servers(file)
        async with open_servers(config, (server,), login=show, open_timeout=_LOGIN_SECONDS) as opened:
            status, tools = opened[0]
            for error in _failures([status], log):
                raise CommandError(error, exit_code=Exit.FAILED)
        click.echo(f"{status['server']}: logged in, {len(tools)} tools")
        return Exit.OK

    return _run(run, backend)


def _hints(tool: Any) -> str:
    words = {"readOnlyHint": "read-only", "destructiveHint": "destructive", "openWorldHint": "open world"}
    return ", ".join(word for hint, word in words.items() if tool.annotations.get(hint) is True)


@mcp.command("call")
@click.argument("server")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON]...")
@server_options
@json_option
def call_tool(
    server: str, tool: str, arguments: tuple[str, ...], file: Path | None, backend: str, as_json: bool
) -> int:
    """Call a TOOL of a SERVER and print its result; no permission is asked for.

    TOOL is the server's name for the tool, or the one in the plan. Arguments are NAME=VALUE, where a VALUE that is JSON is read as JSON unless
    the tool wants a text, or one JSON object. The time goes to standard error. The exit code is 1 if the call fails.
    """

    async def run(log: LogNotices) -> int:
        async with open_servers(_servers(file), (server,)) as opened:
            status, offered = opened[0]
            for error in _failures([status], log):
                raise CommandError(error, exit_code=Exit.FAILED)
            tools = {name: each for each in offered for name in (each.name, _own_name(each))}
            if tool not in tools:
                known = ", ".join(sorted(map(_own_name, offered))) or "none"
                raise CommandError(f"server {server!r} has no tool {tool!r}{suggestion(tool, tools)} It has: {known}")
            given = _read_arguments(arguments, tools[tool].input_schema.get("properties") or {})
            started = time.monotonic()
            result = await tools[tool].execute(given)
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


def _read_arguments(words: tuple[str, ...], properties: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; values are read as JSON where the tool does not want a text."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            given: dict[str, Any] = json.loads(words[0])
        except ValueError as error:
            raise CommandError(f"the arguments are not valid JSON: {error}") from None
        return given
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"{word!r} is no argument; expected NAME=VALUE, or one JSON object")
        arguments[name] = value
        schema = properties.get(name)
        if not isinstance(schema, dict) or schema.get("type") != "string":
            with suppress(ValueError):
                arguments[name] = json.loads(value)
    return arguments


def _own_name(tool: Any) -> str:
    """The server's name for a tool."""
    offered = getattr(tool, "offered", None)
    return tool.name.removeprefix(f"{tool.server}_") if offered is None else str(offered.name)


@mcp.command("import")
@click.argument("file", type=PLAN_FILE)
def import_servers(file: Path) -> None:
    """Print the servers in FILE, which another host uses (an object mcpServers), as a section of a mount plan.

    Variables like ${env:NAME} become ${NAME}. Secrets that are written out in the file stay in it; a note on standard error names them.
    """
    servers = servers_of(read_plan_file(file))
    if servers is None:
        raise CommandError(f"{file}: there is no object mcpServers in it")
    read_mcp_options({"servers": servers})
    for name, server in servers.items():
        _note_secrets(name, server)
    import yaml  # noqa: PLC0415  # belongs to an extra

    made = {"tools": [{"module": "tool-mcp", "config": {"servers": servers}}]}
    click.echo(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), nl=False)


@mcp.command()
@click.argument("plan", type=PLAN_FILE)
@click.option(
    "--transport", type=click.Choice(["stdio", "http"]), default="stdio", help="How clients reach the server."
)
@http_options(port=8000)
@click.option("--oauth", metavar="URL", help="The authorization server whose tokens clients carry, instead of a token.")
@click.option("--introspection", metavar="URL", help="Where that server is asked about a token (RFC 7662).")
@agent_options
def serve(
    plan: Path,
    transport: Literal["stdio", "http"],
    oauth: str | None,
    introspection: str | None,
    provider: str | None,
    model: str | None,
    otel: str | None,
    backend: str,
    **http: Any,
) -> int:
    """Serve the agent of PLAN to MCP clients, with one session for each client.

    The server has the tool `run`, and your own commands as prompts. Questions for permission are asked of the client's user. Over http every request needs a token, which
    is generated and printed to standard error unless --token-file or the variable AMPLIFIER_SERVE_TOKEN has one; with --oauth it is one of
    an authorization server, which is asked about it, with NAME:SECRET of the variable AMPLIFIER_INTROSPECTION if it is set. The options
    about host, port, token, origins and oauth are for http only.
    """
    from amplifier.servers._access import (  # noqa: PLC0415
        address_of,
        listen_on,
        reachability_warning,
        server_names,
    )
    from amplifier.servers.mcp import serve as serve_agent  # noqa: PLC0415  # the other commands save the time
    from amplifier.servers.mcp._serve import import_sdk  # noqa: PLC0415
    from amplifier.tracing import export_traces  # noqa: PLC0415

    made = build_plan(installed_ids(), file=plan, provider=provider, model=model)
    for note in made.notes:
        click.echo(note, err=True)
    served = made.plan if otel is None else with_traces(made.plan)
    prompts = own_commands(Path.cwd())
    run = partial(serve_agent, lambda: AmplifierSession(served), transport=transport, prompts=prompts)
    if (oauth is None) != (introspection is None) or (oauth is not None and transport != "http"):
        raise CommandError("--oauth and --introspection belong together, and to --transport http")
    if transport == "http":
        host, given = http["host"], read_token(http["token_file"], none=http["no_token"] or oauth is not None)
        token = secrets.token_urlsafe(32) if given is None else given
        # It refuses, so before anything listens.
        names = server_names(host, http["hosts"], has_token=token != "" or oauth is not None)
        listening = listen_on(host, http["port"])

        def announce(address: str) -> None:
            click.echo(f"listening on {address}", err=True)
            if given is None:
                click.echo(f"token: {token}", err=True)
            if (warning := reachability_warning(host)) is not None:
                click.echo(warning, err=True)

        run = partial(
            run,
            host=host,
            token=token,
            hosts=names,
            listening=listening,
            origins=http["origins"],
            on_listening=announce,
        )
        if oauth is not None and introspection is not None:
            import_sdk()
            from amplifier.servers.mcp._introspection import oauth_of  # noqa: PLC0415  # it imports the SDK, an extra

            resource = f"{address_of(listening, host)}/mcp"
            secret = os.environ.get("AMPLIFIER_INTROSPECTION")
            run = partial(run, **oauth_of(oauth, introspection, resource, secret))
    with export_traces(otel, partial(click.echo, err=True)):
        ended_by = anyio.run(until_signal, run, backend=backend)
    return Exit.OK if ended_by is None else 128 + ended_by
