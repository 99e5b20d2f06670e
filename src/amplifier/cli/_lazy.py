"""A group of commands whose files are imported when a command is asked for, so that the others stay quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Knows commands by name.

    Args:
        lazy: Where each command is: ``file:attribute`` in this room.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, if there is one of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        file, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"{__package__}.{file}"), attribute)
        return command
