"""``amplifier validate``: check modules, MCP servers and Python tools."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import attrs
import click

from amplifier._internal.json import visible_text
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import AmplifierError

from .module import REPORT_FILE, announce, finish, publish, reject_unwritable, show_progress
from .shared_options import Decorator, LazyGroup, add_options, json_option

if TYPE_CHECKING:
    from amplifier.conformance import Report
    from amplifier.conformance.tool_servers.permission import Permissions
    from amplifier.conformance.tool_servers.run import Choice
    from amplifier.conformance.tool_servers.subject import Subject


@click.group(cls=LazyGroup, lazy={"module": "module:validate"})
def validate() -> None:
    """Check a module, the tools of an MCP server, or Python functions and tools."""


_examining: Decorator = add_options(
    click.option(
        "--call",
        multiple=True,
        metavar="NAME",
        help="Permit calls of this tool; may be given again.",
    ),
    click.option(
        "--call-all", is_flag=True, help="Permit calls of every tool that is not skipped."
    ),
    click.option(
        "--skip", multiple=True, metavar="NAME", help="Never call this tool; may be given again."
    ),
    click.option(
        "--arguments",
        "arguments_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help='Fixed values of arguments, as JSON: {"TOOL": {"NAME": "VALUE"}}; * is every tool.',
    ),
    click.option(
        "--env", multiple=True, metavar="NAME", help="One of your variables, for the program."
    ),
    click.option(
        "--max-calls",
        type=click.IntRange(1),
        default=200,
        show_default=True,
        help="Calls of each tool.",
    ),
    click.option(
        "--timeout",
        "call_seconds",
        type=click.FloatRange(0, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds in which a call has to be answered.",
    ),
    click.option(
        "--replay", metavar="TOKEN", help="Reproduce one finding, by the token from its report."
    ),
    click.option("-v", "--verbose", is_flag=True, help="List kept and unexamined clauses, too."),
    click.option("--html", type=REPORT_FILE, help="Write the report as a page."),
    click.option(
        "--junit", type=REPORT_FILE, help="Write it as JUnit XML: a test for each clause."
    ),
    json_option,
)
"""The options about permitted calls, and about the report."""


@validate.command("mcp")
@click.argument("server", nargs=-1, required=True, metavar="COMMAND|URL")
@click.option(
    "--header",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header for a URL; ${NAME} is one of your variables.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Calls of a URL a second.",
)
@_examining
def validate_mcp(server: tuple[str, ...], header: tuple[str, ...], **options: Any) -> int:
    """Check the tools of an MCP server: a COMMAND in quotation marks, or the URL of a remote one.

    Only permitted tools are called. By default those of a COMMAND that declare readOnlyHint are
    permitted, and none of a URL. The permitted tools are printed first, and at a terminal you can
    permit the others. A COMMAND runs in a fresh folder with a fresh HOME, and gets PATH, LANG and
    the variables of --env. A URL is called with the headers, or with the login of
    `amplifier mcp login`.

    Exit codes: 0 its tools keep every clause that was examined, 1 they break a required one, 2 they
    could not be checked, or some are neither permitted nor skipped.
    """
    target = server[0] if len(server) == 1 else shlex.join(server)
    headers = {}
    for pair in header:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise CommandError(f"--header {name!r}: expected NAME=VALUE")
        headers[name] = value
    if target.startswith(("http://", "https://")):
        return _examine("url", target, headers=headers, auth=login_for(target), **options)
    return _examine("command", target, headers=headers, **options)


@validate.command("python")
@click.argument("target", metavar="PACKAGE:OBJECT")
@_examining
def validate_python(target: str, **options: Any) -> int:
    """Check Python functions and tools: PACKAGE:OBJECT, or FILE.py:OBJECT.

    The object is a function, a tool or toolset of pydantic-ai, a function tool of openai-agents, a
    tool of LangChain, or a list of these. It is imported in a separate process, on asyncio, in a
    fresh folder with a fresh HOME, with PATH, LANG and the variables of --env. Only permitted tools
    are called. Functions declare nothing, so permit them with --call NAME or --call-all.

    Exit codes: 0 they keep every clause that was examined, 1 they break a required one, 2 they
    could not be checked, or some are neither permitted nor skipped.
    """
    return _examine("python", target, **options)


def login_for(url: str) -> Any:
    """Return a function that creates the login for the configured server with this URL, or None."""
    # Only needed for URLs.
    from amplifier.cli.agent.configuration import read_configuration  # noqa: PLC0415
    from amplifier.modules.tools.mcp import login_of, read_mcp_options  # noqa: PLC0415

    for name, server in (read_configuration(Path.cwd()).below("mcpServers") or {}).items():
        if isinstance(server, dict) and url in (
            server.get("url"),
            server.get("serverUrl"),
            server.get("httpUrl"),
        ):
            for options in read_mcp_options({"servers": {name: server}}).servers:
                if options.oauth is not None:
                    return partial(login_of, options)
    return None


def _examine(
    kind: Literal["command", "url", "python"],
    target: str,
    *,
    arguments_file: Path | None,
    html: Path | None,
    junit: Path | None,
    verbose: bool,
    as_json: bool,
    env: tuple[str, ...],
    headers: dict[str, str] | None = None,
    auth: Any = None,
    **options: Any,
) -> int:
    files = {
        name: file for name, file in {"html": html, "junit": junit}.items() if file is not None
    }
    reject_unwritable(files)
    streams = StandardStreams()
    subject_name = visible_text(target, multiline=False) if kind == "python" else "the server"
    announce(subject_name, streams, quiet=as_json)
    with show_progress(streams, quiet=as_json) as progress:
        if progress is not None:
            progress("starting", 0, 1)
        # Importing it takes a second.
        from amplifier.conformance import Report  # noqa: PLC0415
        from amplifier.conformance.tool_servers.run import Choice, read_arguments  # noqa: PLC0415
        from amplifier.conformance.tool_servers.subject import Subject  # noqa: PLC0415

    fixed = (
        {} if arguments_file is None else read_arguments(arguments_file.read_text(encoding="utf-8"))
    )
    subject = Subject(
        kind=kind, target=target, env=env, headers=headers or {}, arguments=fixed, auth=auth
    )
    choice = Choice(
        arguments_file=None if arguments_file is None else str(arguments_file), **options
    )
    try:
        report = _run(subject, choice, streams, as_json=as_json)
    except (AmplifierError, CommandError, OSError) as error:
        notes = [subject.without_secrets(error_message(error))]
        publish(
            Report(
                module=subject.shown, source=subject.shown, verdict="unchecked", seed=0, notes=notes
            ),
            files,
        )
        raise
    return finish(report, files, streams, verbose=verbose, as_json=as_json)


def _run(subject: Subject, choice: Choice, streams: StandardStreams, *, as_json: bool) -> Report:
    """Examine the tools.

    At a terminal, first ask about tools that are neither permitted nor skipped.
    """
    from amplifier.conformance.tool_servers.run import check_tools  # noqa: PLC0415

    asks = streams.share_a_terminal and not as_json
    asked: list[Permissions] = []

    def announce(permissions: Permissions) -> bool:
        if asks and not asked and permissions.undecided:
            asked.append(permissions)
            return False
        click.echo("\n".join([*permissions.lines(), ""]), err=as_json)
        return True

    def run() -> Report:
        with show_progress(streams, quiet=as_json) as progress:
            return anyio.run(
                partial(check_tools, subject, choice, announce=announce, progress=progress)
            )

    report = run()
    if asked:
        # Restart the server after the answer, because some servers don't wait that long.
        choice = _ask(choice, asked[0])
        report = run()
    return report


def _ask(choice: Choice, permissions: Permissions) -> Choice:
    click.echo("\n".join(permissions.lines()))
    if click.confirm(
        "Call these as well? They may change, send or delete something", default=False
    ):
        return attrs.evolve(choice, call=(*choice.call, *permissions.undecided))
    return attrs.evolve(choice, skip=(*choice.skip, *permissions.undecided))
