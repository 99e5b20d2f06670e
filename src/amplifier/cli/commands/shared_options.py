"""Groups, options and completions of several commands."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from amplifier.cli._sessions import SessionStore

Decorator: TypeAlias = Callable[[Any], Any]
"""Adds options to a command."""

_TOKEN_VARIABLE = "AMPLIFIER_SERVE_TOKEN"


GlobalOptions = SimpleNamespace
"""Options that may precede the command's name: ``debug``, to show tracebacks."""


def open_store(*, writable: bool = False) -> SessionStore:
    """Return the sessions of this user.

    Raises:
        CommandError: ``writable`` is True, and the folder isn't writable.
    """
    # ``--version`` and ``--help`` don't need the store and its imports.
    from amplifier.cli._sessions import (  # noqa: PLC0415
        SessionStore,
        find_home,
        require_writable,
    )

    if writable:
        require_writable(find_home() / "sessions")
    return SessionStore(find_home() / "sessions")


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and (options := context.find_object(GlobalOptions)) is not None:
        options.debug = True


debug_option: Decorator = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Show tracebacks and the library's log.",
)
"""``--debug`` may precede or follow the command's name."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is needed, so that others start quickly.

    Each command accepts ``--debug``.

    Args:
        lazy: The place of each command, as ``file:attribute`` in this package.
        summaries: First sentences of commands, for a help that doesn't import them.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str] = MappingProxyType({}),
        summaries: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(dict.fromkeys([*self._lazy, *super().list_commands(ctx)]))

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command."""
        # A command in two groups already has the option.
        if all("--debug" not in parameter.opts for parameter in cmd.params):
            cmd = debug_option(cmd)
        super().add_command(cmd, name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command with this name, if there is one."""
        if cmd_name in self._lazy and cmd_name not in self.commands:
            file, _, attribute = self._lazy[cmd_name].partition(":")
            self.add_command(
                getattr(importlib.import_module(f".{file}", __package__), attribute), cmd_name
            )
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the help that lists the commands."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))  # click's own
        rows = []
        for name in names:
            summary = self._summaries.get(name)
            command = (
                self.get_command(ctx, name)
                if summary is None
                else click.Command(name, help=summary)
            )
            rows.append((name, "" if command is None else command.get_short_help_str(limit)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command in the arguments. An error suggests the nearest name."""
        name = args[0]
        if (
            not name.startswith("-")
            and not ctx.resilient_parsing
            and self.get_command(ctx, name) is None
        ):
            # Only an error needs this import.
            from amplifier._internal.spelling import suggestion  # noqa: PLC0415

            ctx.fail(f"No such command {name!r}{suggestion(name, self.list_commands(ctx)) or '.'}")
        return super().resolve_command(ctx, args)


json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of a table."
)


Completion: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def completion(names: Callable[[], Iterable[str]]) -> Completion:
    """Return a function that completes the beginning of a name, for the shell."""
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]


def _providers() -> list[str]:
    # Only completion needs it.
    from amplifier.loading.loader import installed_ids  # noqa: PLC0415

    return [
        name.removeprefix("provider-") for name in installed_ids() if name.startswith("provider-")
    ]


complete_session: Completion = completion(
    lambda: [record.session_id for record in open_store().records()]
)
complete_provider: Completion = completion(_providers)

PLAN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def add_options(*options: Decorator) -> Decorator:
    """Add several options to a command, in the order of its help."""
    return lambda command: reduce(lambda result, option: option(result), reversed(options), command)


backend_option: Decorator = click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    help="The event loop to run on.",
)
agent_options: Decorator = add_options(
    click.option(
        "-p",
        "--provider",
        metavar="NAME",
        shell_complete=complete_provider,
        help="The provider, e.g. anthropic.",
    ),
    click.option(
        "-m",
        "--model",
        metavar="NAME",
        help="The model, e.g. openai:gpt-5; by default the provider's choice.",
    ),
    click.option(
        "--otel",
        metavar="URL",
        help="Send traces and metrics to an OpenTelemetry collector (OTLP over HTTP).",
    ),
    backend_option,
)
"""The options for an agent, its backend and its traces."""


def http_options(*, port: int) -> Decorator:
    """Add the options of an HTTP server: its address, and its access.

    Args:
        port: The default.
    """
    local = "The address to listen on; other machines cannot reach 127.0.0.1."
    another = "Another host name of the server."
    site = "Another site whose pages may use the server."
    return add_options(
        click.option("--host", metavar="NAME", default="127.0.0.1", help=local),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            help="The port; 0 for any free one.",
        ),
        click.option("--token-file", type=PLAN_FILE, metavar="FILE", help="A file with the token."),
        click.option(
            "--no-token", is_flag=True, help="Let every program on this machine use the agent."
        ),
        click.option("--allow-host", "hosts", metavar="NAME", multiple=True, help=another),
        click.option("--allow-origin", "origins", metavar="URL", multiple=True, help=site),
    )


def import_http_server(purpose: str) -> Any:
    """Return the module of HTTP servers.

    Raises:
        MissingExtraError: A package for them isn't installed.
    """
    try:
        # It belongs to an extra.
        from amplifier.cli.agent import http_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        from amplifier.errors import MissingExtraError  # noqa: PLC0415

        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "hypercorn"):
            raise
        raise MissingExtraError(
            purpose, extra="serve", missing=error.name or "starlette"
        ) from error
    return http_server


def read_token(file: Path | None, *, none: bool) -> str | None:
    """Return the user's token for HTTP: an empty text for no token, or None to generate one.

    Raises:
        CommandError: The token can't be read.
        PlanError: The token is invalid.
    """
    # ``--help`` doesn't need them.
    from amplifier.cli._exit_codes import CommandError  # noqa: PLC0415
    from amplifier.servers.access import check_token  # noqa: PLC0415

    token = os.environ.get(_TOKEN_VARIABLE)
    if none:
        if file is not None:
            raise CommandError("leave out --token-file or --no-token: they exclude each other")
        return ""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{file}: the token cannot be read: {error}") from error
    check_token(token, _TOKEN_VARIABLE if file is None else str(file))
    return token


plan_option: Decorator = click.option(
    "--plan", type=PLAN_FILE, metavar="FILE", help="A mount plan (YAML, TOML, JSON) of your own."
)
