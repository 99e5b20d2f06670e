"""``amplifier mcp``: MCP servers, their tools, and an agent as a server."""

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
    """Add MCP servers, list and call their tools, import them, or serve an agent."""


def _servers(file: Path | None) -> dict[str, Any]:
    """Return the servers of a file, by default the configured ones."""
    for problem in load_keys():
        click.echo(problem, err=True)
    if file is not None:
        return read_servers(file)
    configuration = read_configuration(Path.cwd())
    for note in configuration.notes:
        click.echo(note, err=True)
    servers = configuration.below("mcpServers")
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
    help="A variable for the command; ${NAME} is one of yours.",
)
@click.option("-H", "--header", multiple=True, metavar="NAME=VALUE", help="A header for the URL.")
def add_server(
    name: str, command: tuple[str, ...], env: tuple[str, ...], header: tuple[str, ...]
) -> None:
    """Add the server NAME to your configuration: a COMMAND with its arguments, or a URL.

    Options come before NAME. `amplifier mcp test NAME` starts it. Every agent of the default plan
    has it from then on.
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
    file = change_user_file("mcpServers", name, server)
    click.echo(f"{name} is in {file}; try it: amplifier mcp test {name}")


def _note_secrets(name: str, server: dict[str, Any]) -> None:
    for section in ("env", "headers"):
        for key, value in (server.get(section) or {}).items():
            if "${" not in value and redact_text(f"{key}: {value}") != f"{key}: {value}":
                setting = f"{name}.{section}.{key}"
                note = f"note: {setting} is a secret in plain text; use ${{NAME}} instead"
                click.echo(note, err=True)


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
        help="A mount plan with tool-mcp, or another host's file with mcpServers.",
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
"""The status of each server, and its mounted tools."""


@asynccontextmanager
async def _opened(
    config: dict[str, Any], only: tuple[str, ...], login: Any, **changes: Any
) -> AsyncIterator[Opened]:
    """Open servers as a session would.

    Args:
        config: The configuration of tool-mcp.
        only: Names of the servers to open. An empty tuple opens all.
        login: Shows the user the address of the login.
        changes: Options for every server.

    Raises:
        CommandError: There is no server of that name.
        PlanError: The configuration is invalid.
    """
    key = "servers" if "servers" in config else "mcpServers"
    servers = config.get(key) or {}
    for name in only:
        if name not in servers:
            known = ", ".join(servers) or "none"
            advice = suggestion(name, servers) or "."
            raise CommandError(f"there is no server {name!r}{advice} The servers are: {known}")
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
            raise CommandError("\n".join(str(error) for error in group.exceptions)) from group
        tools = session.coordinator.get("tools").values()
        yield [
            (status, [tool for tool in tools if getattr(tool, "server", None) == status["server"]])
            for status in session.coordinator.get_capability("mcp.status")()
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
    """Open servers, work with the available ones, and print failures and warnings.

    Returns:
        The exit code.
    """
    log = install_log_handler(Display(StandardStreams()), debug=False)
    log.hold()

    async def run() -> int:
        async with _opened(_servers(file), servers, login, **changes) as opened:
            errors = [status["error"] for status, _ in opened if status["error"] is not None]
            if shows_failed or len(errors) < len(opened):
                await work(opened)
        for error in errors:
            # The log has the same error.
            log.pop_about(error.partition("\n")[0])
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
                {
                    **status,
                    "tools": [{name: getattr(tool, name) for name in names} for tool in tools],
                }
                for status, tools in opened
            ]
            click.echo(json.dumps(listed, indent=2))
        else:
            rows = [
                [status["server"], tool.name, _hints(tool), _first_line(tool.description)]
                for status, tools in opened
                for tool in tools
            ]
            print_table(["server", "tool", "hints", "description"], rows)

    return _run(show, servers, file, backend, shows_failed=as_json)


@mcp.command("test")
@options_of_all_servers
def test_servers(servers: tuple[str, ...], file: Path | None, backend: str, as_json: bool) -> int:
    """Start every SERVER, or all servers, and print the result and the time of each.

    The exit code is 1 if a server fails.
    """

    async def show(opened: Opened) -> None:
        if as_json:
            click.echo(json.dumps([status for status, _ in opened], indent=2))
            return
        for status, tools in opened:
            if status["error"] is None:
                facts = [
                    status["server_info"].strip(),
                    f"protocol {status['protocol']}",
                    f"{len(tools)} tools",
                    f"ready in {status['seconds']:.2f} s",
                ]
                mark = click.style("✓", fg="green")
                click.echo(f"{mark} {status['server']}: {', '.join(facts)}")

    started = time.monotonic()
    code = _run(show, servers, file, backend, shows_failed=as_json)
    click.echo(f"opened and closed in {time.monotonic() - started:.2f} s", err=True)
    return code


@mcp.command("login")
@click.argument("server")
@server_options
def login(server: str, file: Path | None, backend: str) -> int:
    """Log in to a remote SERVER whose plan has `oauth`.

    The command prints the address of a page to open in a browser, and waits. The tokens are kept
    in a file that only you can read, and sessions use and renew them.
    """

    async def ask(address: str) -> None:
        shown = visible_text(address, multiline=False)
        click.echo(f"Open this page in a browser on this machine:\n  {shown}")

    async def show(opened: Opened) -> None:
        click.echo(f"{server}: logged in, {len(opened[0][1])} tools")

    return _run(show, (server,), file, backend, login=ask, open_timeout=_LOGIN_SECONDS)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _hints(tool: Any) -> str:
    labels = {
        "readOnlyHint": "read-only",
        "destructiveHint": "destructive",
        "openWorldHint": "open world",
    }
    hints = (label for hint, label in labels.items() if tool.annotations.get(hint) is True)
    return ", ".join(hints)


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
    """Call a TOOL of a SERVER and print its result, without a question for permission.

    TOOL is the server's name for the tool, or the one in the plan. Arguments are NAME=VALUE, or one
    JSON object. A VALUE is read as JSON if it is JSON and the tool doesn't expect a text. The time
    goes to standard error. The exit code is 1 if the call fails.
    """

    async def call(opened: Opened) -> None:
        offered = opened[0][1]
        tools = {name: item for item in offered for name in (item.name, _own_name(item))}
        if tool not in tools:
            known = ", ".join(sorted(map(_own_name, offered))) or "none"
            advice = suggestion(tool, tools) or "."
            raise CommandError(f"server {server!r} has no tool {tool!r}{advice} It has: {known}")
        properties = tools[tool].input_schema.get("properties") or {}
        tool_input = _read_arguments(arguments, properties)
        started = time.monotonic()
        result = await tools[tool].execute(tool_input)
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
    """Read the arguments of a call. Values are JSON, unless the tool expects a text."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            content: dict[str, Any] = json.loads(words[0])
        except ValueError as error:
            raise CommandError(f"the arguments are not valid JSON: {error}") from None
        return content
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(
                f"{word!r} is not an argument; expected NAME=VALUE, or one JSON object"
            )
        arguments[name] = value
        schema = properties.get(name)
        if not isinstance(schema, dict) or schema.get("type") != "string":
            with suppress(ValueError):
                arguments[name] = json.loads(value)
    return arguments


def _own_name(tool: Any) -> str:
    """Return the server's name for a tool."""
    offered = getattr(tool, "offered", None)
    return tool.name.removeprefix(f"{tool.server}_") if offered is None else str(offered.name)


@mcp.command("import")
@click.argument("file", type=PLAN_FILE)
def import_servers(file: Path) -> None:
    """Print the servers in another host's FILE (an object mcpServers) as a section of a plan.

    Variables like ${env:NAME} become ${NAME}. Secrets in plain text stay as they are, and a note on
    standard error names them.
    """
    servers = servers_of(read_plan_file(file))
    if servers is None:
        raise CommandError(f"{file}: there is no object mcpServers in it")
    read_mcp_options({"servers": servers})
    for name, server in servers.items():
        _note_secrets(name, server)
    # PyYAML belongs to an extra.
    import yaml  # noqa: PLC0415

    section = {"tools": [{"module": "tool-mcp", "config": {"servers": servers}}]}
    click.echo(yaml.safe_dump(section, sort_keys=False, allow_unicode=True), nl=False)


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

    PLAN is a mount plan (YAML, TOML, JSON). The default is the plan of `amplifier run`, which
    doesn't save sessions here. The server has the tool `run`, and your own commands as prompts.
    Approval requests go to the client's user. Over http every request needs a token, which is
    generated and printed to standard error unless --token-file or the variable
    AMPLIFIER_SERVE_TOKEN has one. The options for host, port, token and origins apply only to http.
    """
    # Import these here, so that other commands start faster.
    from amplifier.servers.access import (  # noqa: PLC0415
        listen_on,
        reachability_warning,
        server_names,
    )
    from amplifier.servers.mcp import serve as serve_agent  # noqa: PLC0415
    from amplifier.tracing import export_traces  # noqa: PLC0415

    configuration = read_configuration(Path.cwd()) if plan is None else None
    agent_plan = build_plan(
        installed_ids(), file=plan, provider=provider, model=model, configuration=configuration
    )
    for note in agent_plan.notes:
        click.echo(note, err=True)
    served = in_memory(agent_plan.plan) if plan is None else agent_plan.plan
    served = served if otel is None else with_traces(served)
    prompts = own_commands(Path.cwd(), notice=partial(click.echo, err=True))
    run = partial(
        serve_agent, lambda: AmplifierSession(served), transport=transport, prompts=prompts
    )
    if transport == "http":
        host, user_token = http["host"], read_token(http["token_file"], none=http["no_token"])
        token = secrets.token_urlsafe(32) if user_token is None else user_token
        # This may raise, so call it before anything listens.
        names = server_names(host, http["hosts"], has_token=token != "")
        listening = listen_on(host, http["port"])

        def announce(address: str) -> None:
            click.echo(f"listening on {address}", err=True)
            if user_token is None:
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
