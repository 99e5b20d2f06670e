"""``amplifier mcp``: what MCP servers offer, a call by hand, the servers of other hosts, an agent as a server."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import click

from amplifier._internal.json import redact_text, visible_text
from amplifier._internal.spelling import suggestion
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli.agent.configuration import change_user_file, load_keys, read_configuration
from amplifier.cli.agent.default_plan import build_plan, in_memory, with_traces
from amplifier.cli.agent.plan_files import (
    MCP_MODULE,
    read_plan_file,
    read_servers,
    servers_of,
    with_variables_of_plans,
)
from amplifier.cli.agent.project_instructions import own_commands
from amplifier.cli.agent.signals import until_signal
from amplifier.cli.terminal.display import Display, install_log_handler
from amplifier.cli.terminal.output import StandardStreams, print_table
from amplifier.kernel import AmplifierSession
from amplifier.loading.loader import installed_ids
from amplifier.models import to_dict
from amplifier.modules.tools.mcp import read_mcp_options
from amplifier.plan import expand_variables

from .shared_options import (
    PLAN_FILE,
    Decorator,
    LazyGroup,
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
        raise CommandError(
            "no MCP server is configured; add one: amplifier mcp add NAME COMMAND… (or a URL)"
        )
    return expand_variables({"servers": with_variables_of_plans(servers)}, os.environ)


@mcp.command(
    "add", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...|URL")
@click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the command; ${NAME} is yours.",
)
@click.option("-H", "--header", multiple=True, metavar="NAME=VALUE", help="A header for the URL.")
def add_server(
    name: str, command: tuple[str, ...], env: tuple[str, ...], header: tuple[str, ...]
) -> None:
    """Add the server NAME to your configuration: a COMMAND with its arguments, or the URL of a remote one.

    Options come before NAME. `amplifier mcp test NAME` starts it. Every agent of the default plan has it from then on.
    """
    is_url = len(command) == 1 and command[0].startswith(("https://", "http://"))
    server: dict[str, Any] = (
        {"url": command[0]} if is_url else {"command": command[0], "args": list(command[1:])}
    )
    for key, pairs in (("env", env), ("headers", header)):
        if pairs:
            server[key] = {word.partition("=")[0]: word.partition("=")[2] for word in pairs}
    read_mcp_options({"servers": {name: server}})
    _note_secrets(name, server)
    click.echo(
        f"{name} is in {change_user_file('mcpServers', name, server)}; try it: amplifier mcp test {name}"
    )


def _note_secrets(name: str, server: dict[str, Any]) -> None:
    for section in ("env", "headers"):
        for key, value in (server.get(section) or {}).items():
            if "${" not in value and redact_text(f"{key}: {value}") != f"{key}: {value}":
                click.echo(
                    f"note: {name}.{section}.{key} is a secret in plain text; use ${{NAME}} instead",
                    err=True,
                )


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

_LOGIN_SECONDS = 600.0

options_of_all_servers: Decorator = add_options(
    click.argument("servers", nargs=-1, metavar="[SERVER]..."), server_options, json_option
)
"""The argument and the options of a command about all servers."""

Opened: TypeAlias = list[tuple[dict[str, Any], list[Any]]]
"""What is known about each server, and its mounted tools."""


@asynccontextmanager
async def _opened(
    config: dict[str, Any], only: tuple[str, ...], login: Any, **changes: Any
) -> AsyncIterator[Opened]:
    """Open servers as a session would.

    Args:
        config: The configuration of tool-mcp.
        only: Names of the servers to open; all, if there are none.
        login: Shows the user where to log in.
        changes: Options that every server gets.

    Raises:
        CommandError: There is no server of that name.
        PlanError: The configuration is wrong.
    """
    key = "servers" if "servers" in config else "mcpServers"
    servers = config.get(key) or {}
    for name in only:
        if name not in servers:
            known = ", ".join(servers) or "none"
            raise CommandError(
                f"there is no server {name!r}{suggestion(name, servers) or '.'} The servers are: {known}"
            )
    if not servers:
        raise CommandError("there is no server to open: the plan names none")
    wanted = {
        name: {**server, **changes} for name, server in servers.items() if not only or name in only
    }
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True},
        "providers": ["provider-mock"],
        "tools": [{"module": MCP_MODULE, "config": {**config, key: wanted}}],
    }
    session = AmplifierSession(plan)
    if login is not None:
        session.coordinator.register_capability("mcp.login", login)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(session)
        except ExceptionGroup as group:
            raise CommandError(
                "\n".join(str(error) for error in group.exceptions), exit_code=Exit.USAGE
            ) from group
        tools = session.coordinator.get("tools").values()
        yield [
            (each, [tool for tool in tools if getattr(tool, "server", None) == each["server"]])
            for each in session.coordinator.get_capability("mcp.status")()
        ]


def _run(
    work: Callable[[Opened], Awaitable[None]],
    servers: tuple[str, ...],
    file: Path | None,
    backend: str,
    *,
    shows_failed: bool = False,
    login: Any = None,
    **changes: Any,
) -> int:
    """Open servers and work with those that have not failed; prints why some have, then the other warnings. Returns the exit code."""
    log = install_log_handler(Display(StandardStreams()), debug=False)
    log.hold()

    async def run() -> int:
        async with _opened(_servers(file), servers, login, **changes) as opened:
            errors = [each["error"] for each, _ in opened if each["error"] is not None]
            if shows_failed or len(errors) < len(opened):
                await work(opened)
        for error in errors:
            log.pop_about(error.partition("\n")[0])  # it is in the log as well
            click.echo(f"{click.style('✗', fg='red')} {visible_text(error)}", err=True)
        return Exit.FAILED if errors else Exit.OK

    try:
        return anyio.run(run, backend=backend)
    finally:
        log.show_held()


@mcp.command("list")
@options_of_all_servers
def list_tools(servers: tuple[str, ...], file: Path | None, backend: str, as_json: bool) -> int:
    """List the tools of every SERVER, or of all servers.

    The exit code is 1 if a server fails.
    """

    async def show(opened: Opened) -> None:
        if as_json:
            names = ("name", "description", "annotations", "input_schema")
            listed = [
                {**each, "tools": [{name: getattr(tool, name) for name in names} for tool in tools]}
                for each, tools in opened
            ]
            click.echo(json.dumps(listed, indent=2))
        else:
            rows = [
                [
                    each["server"],
                    tool.name,
                    _hints(tool),
                    tool.description.strip().partition("\n")[0],
                ]
                for each, tools in opened
                for tool in tools
            ]
            print_table(["server", "tool", "hints", "what it does"], rows)

    return _run(show, servers, file, backend, shows_failed=as_json)


@mcp.command("test")
@options_of_all_servers
def test_servers(servers: tuple[str, ...], file: Path | None, backend: str, as_json: bool) -> int:
    """Start every SERVER, or all servers, and print how that went and how long it took.

    The exit code is 1 if a server fails.
    """

    async def show(opened: Opened) -> None:
        if as_json:
            click.echo(json.dumps([each for each, _ in opened], indent=2))
            return
        for each, tools in opened:
            if each["error"] is None:
                about = f"{each['server_info'].strip()}, protocol {each['protocol']}, {len(tools)} tools"
                click.echo(
                    f"{click.style('✓', fg='green')} {each['server']}: {about}, ready in {each['seconds']:.2f} s"
                )

    started = time.monotonic()
    code = _run(show, servers, file, backend, shows_failed=as_json)
    click.echo(f"opened and closed in {time.monotonic() - started:.2f} s", err=True)
    return code


@mcp.command("login")
@click.argument("server")
@server_options
def login(server: str, file: Path | None, backend: str) -> int:
    """Log in to a remote SERVER whose plan has `oauth`: prints a page to open in a browser, and waits.

    The tokens are kept in a file that only you can read; sessions use and renew them.
    """

    async def ask(address: str) -> None:
        click.echo(
            f"Open this page in a browser on this machine:\n  {visible_text(address, multiline=False)}"
        )

    async def show(opened: Opened) -> None:
        click.echo(f"{server}: logged in, {len(opened[0][1])} tools")

    return _run(show, (server,), file, backend, login=ask, open_timeout=_LOGIN_SECONDS)


def _hints(tool: Any) -> str:
    words = {
        "readOnlyHint": "read-only",
        "destructiveHint": "destructive",
        "openWorldHint": "open world",
    }
    return ", ".join(word for hint, word in words.items() if tool.annotations.get(hint) is True)


@mcp.command("call")
@click.argument("server")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON]...")
@server_options
@json_option
def call_tool(
    server: str,
    tool: str,
    arguments: tuple[str, ...],
    file: Path | None,
    backend: str,
    as_json: bool,
) -> int:
    """Call a TOOL of a SERVER and print its result; no permission is asked for.

    TOOL is the server's name for the tool, or the one in the plan. Arguments are NAME=VALUE, where a VALUE that is JSON is read as JSON unless
    the tool wants a text, or one JSON object. The time goes to standard error. The exit code is 1 if the call fails.
    """

    async def call(opened: Opened) -> None:
        offered = opened[0][1]
        tools = {name: each for each in offered for name in (each.name, _own_name(each))}
        if tool not in tools:
            known = ", ".join(sorted(map(_own_name, offered))) or "none"
            raise CommandError(
                f"server {server!r} has no tool {tool!r}{suggestion(tool, tools) or '.'} It has: {known}"
            )
        given = _read_arguments(arguments, tools[tool].input_schema.get("properties") or {})
        started = time.monotonic()
        result = await tools[tool].execute(given)
        seconds = time.monotonic() - started
        if as_json:
            click.echo(json.dumps({**to_dict(result), "seconds": round(seconds, 3)}, indent=2))
        elif result.success:
            click.echo(visible_text(result.get_serialized_output()))
            click.echo(f"{seconds:.3f} s", err=True)
        if not result.success:
            message = (result.error or {}).get("message", "the call failed")
            raise CommandError(str(message), exit_code=Exit.FAILED)

    return _run(call, (server,), file, backend)


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
@click.argument("plan", required=False, type=PLAN_FILE)
@click.option(
    "--transport",
    type=click.Choice(["stdio", "http"]),
    default="stdio",
    help="How clients reach the server.",
)
@http_options(port=8000)
@agent_options
def serve(
    plan: Path | None,
    transport: Literal["stdio", "http"],
    provider: str | None,
    model: str | None,
    otel: str | None,
    backend: str,
    **http: Any,
) -> int:
    """Serve an agent to MCP clients, with one session for each client.

    PLAN is a mount plan (YAML, TOML, JSON); without one, it is the plan of `amplifier run`, which keeps nothing here.
    The server has the tool `run`, and your own commands as prompts. Questions for permission are asked of the client's user. Over http every request needs a token, which
    is generated and printed to standard error unless --token-file or the variable AMPLIFIER_SERVE_TOKEN has one. The options about host,
    port, token and origins are for http only.
    """
    from amplifier.servers.access import listen_on, reachability_warning, server_names  # noqa: PLC0415
    from amplifier.servers.mcp import serve as serve_agent  # noqa: PLC0415  # the other commands save the time
    from amplifier.tracing import export_traces  # noqa: PLC0415

    configuration = read_configuration(Path.cwd()) if plan is None else None
    made = build_plan(
        installed_ids(), file=plan, provider=provider, model=model, configuration=configuration
    )
    for note in made.notes:
        click.echo(note, err=True)
    served = in_memory(made.plan) if plan is None else made.plan
    served = served if otel is None else with_traces(served)
    prompts = own_commands(Path.cwd(), notice=partial(click.echo, err=True))
    run = partial(
        serve_agent, lambda: AmplifierSession(served), transport=transport, prompts=prompts
    )
    if transport == "http":
        host, given = http["host"], read_token(http["token_file"], none=http["no_token"])
        token = secrets.token_urlsafe(32) if given is None else given
        # It refuses, so before anything listens.
        names = server_names(host, http["hosts"], has_token=token != "")
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
    with export_traces(otel, partial(click.echo, err=True)):
        ended_by = anyio.run(until_signal, run, backend=backend)
    return Exit.OK if ended_by is None else 128 + ended_by
