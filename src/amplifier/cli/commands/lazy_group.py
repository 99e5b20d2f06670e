"""A group of commands that imports a command when it is requested, so that the others start quickly; each takes ``--debug``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from .shared_options import debug_option


class LazyGroup(click.Group):
    """A group that knows its commands by name.

    Args:
        lazy: Where each command is: ``file:attribute`` in this package, or with dots before it above.
        summaries: First sentences of commands, for a help that does not import these.
        advice: Added to the error message about a name that resembles no command.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str] = MappingProxyType({}),
        summaries: Mapping[str, str] = MappingProxyType({}),
        advice: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._summaries = summaries
        self._advice = advice

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return list(dict.fromkeys([*self._lazy, *super().list_commands(ctx)]))

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command."""
        super().add_command(debug_option(cmd), name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, if there is one of that name."""
        if cmd_name in self._lazy and cmd_name not in self.commands:
            file, _, attribute = self._lazy[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(f".{file}", __package__), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the help that lists the commands."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))  # click's own
        rows = []
        for name in names:
            summary = self._summaries.get(name)
            command = self.get_command(ctx, name) if summary is None else click.Command(name, help=summary)
            rows.append((name, "" if command is None else command.get_short_help_str(limit)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; the error for an unknown name suggests the nearest one."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from amplifier._spelling import did_you_mean, nearest  # noqa: PLC0415  # only needed after a mistake

            names = self.list_commands(ctx)
            near = nearest(name, names)
            advice = f"; {did_you_mean(near)}" if near else f". There are: {', '.join(names)}.{self._advice}"
            ctx.fail(f"No such command {name!r}{advice}")
        return super().resolve_command(ctx, args)
