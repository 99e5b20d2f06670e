"""The page of all commands and their options, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from amplifier.cli.commands.app import app

from ._markdown import joined, one_line, page, table

_EVERYWHERE = ("help", "debug")


def commands_page() -> str:
    """Show every command."""
    context = click.Context(app, info_name="amplifier")
    return page(
        "Commands and options",
        "The help of every command, as `amplifier COMMAND --help` prints it. Output, exit codes, keys and files are described in [the command line](cli.md).",
        "Every command takes `-h`, `--help`. `--debug`, before or behind a command's name, shows tracebacks and the library's log. "
        "`amplifier --version` prints the version.",
        *(_entry(command, path) for path, command in _commands(app, context)),
    )


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        path = f"{context.command_path} {name}"
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield path, command
            yield from _commands(command, click.Context(command, info_name=path))
        else:
            yield path, command


def _entry(command: click.Command, path: str) -> str:
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    options = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and not parameter.hidden
        and parameter.name not in _EVERYWHERE
    ]
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *map(_shown, arguments)])
    rows = [
        (_spelling(option), _default(option), one_line(option.help or "")) for option in options
    ]
    return joined(
        [
            f"## `{path}`",
            f"`{usage}`",
            _prose(command.help or ""),
            table(("option", "default", "meaning"), rows),
        ]
    )


def _shown(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    name += "..." if argument.nargs == -1 and not name.endswith("...") else ""
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _spelling(option: click.Option) -> str:
    value = "" if option.is_flag or option.count else f" {_value(option)}"
    flags = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{flag}{value if flag == flags[-1] else ''}`" for flag in flags)


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return "N" if isinstance(option.type, click.IntRange) else option.type.name.upper()


def _default(option: click.Option) -> str:
    plain = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return f"`{option.default}`" if plain and not option.is_flag else ""


def _prose(text: str) -> str:
    """Help as click writes it; text after click's mark for verbatim lines is kept verbatim."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.startswith("\b\n"):
            blocks.append(f"```text\n{inspect.cleandoc(block[2:])}\n```")
        else:
            blocks.append(one_line(block))
    return joined(blocks)
