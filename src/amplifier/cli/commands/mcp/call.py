"""``amplifier mcp call``: one call of a tool, by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from amplifier._json import visible_text
from amplifier._spelling import suggestion
from amplifier.cli.agent.mcp_servers import open_servers, read_servers
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.models import to_dict

from ..shared_options import json_option
from .running import require_open, run_command, server_options

__all__ = ["call_tool"]


@click.command("call")
@click.argument("server")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON]...")
@server_options
@json_option
def call_tool(server: str, tool: str, arguments: tuple[str, ...], file: Path, backend: str, as_json: bool) -> int:
    """Call a TOOL of a SERVER and print its result; no permission is asked for.

    TOOL is the server's name for the tool, or the one in the plan. Arguments are NAME=VALUE, where a VALUE that is JSON is read as JSON unless
    the tool wants a text, or one JSON object. The time goes to standard error. The exit code is 1 if the call fails.
    """
    given = _read_arguments(arguments)

    async def run() -> int:
        async with open_servers(read_servers(file), (server,)) as opened:
            require_open(opened.status())
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

    return run_command(run, backend)


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
