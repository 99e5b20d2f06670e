"""What the commands that open servers share: their options, how they run, how they report servers that fail."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import click

from amplifier._json import visible_text
from amplifier.cli.core.exit_codes import CommandError, Exit

from ..shared_options import PLAN_FILE, debug_option, json_option

__all__ = ["exit_code", "options_of_all_servers", "print_failures", "require_open", "run_command", "server_options"]

F = TypeVar("F", bound=Callable[..., Any])

_PRINTED: set[str] = set()
"""Failures that the running command has printed."""


def server_options(command: F) -> F:
    """Add the options of every command that opens servers: ``--plan``, ``--backend`` and ``--debug``."""
    command = debug_option(command)
    command = click.option(
        "--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The event loop to run on."
    )(command)
    return click.option(
        "--plan",
        "file",
        type=PLAN_FILE,
        required=True,
        metavar="FILE",
        help="A mount plan with the module tool-mcp, or a file of another host with mcpServers.",
    )(command)


def options_of_all_servers(command: F) -> F:
    """Add the argument ``[SERVER]...`` and the options of a command about all servers."""
    return click.argument("servers", nargs=-1, metavar="[SERVER]...")(server_options(json_option(command)))


class _Notices(logging.Handler):
    """Keeps the warnings of the module; those about failed servers are printed by the commands themselves."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        if record.name.startswith("amplifier.modules"):
            self.messages.append(record.getMessage())


def run_command(function: Callable[[], Awaitable[int]], backend: str) -> int:
    """Run a command to its exit code, then print the warnings of the module."""
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


def print_failures(status: list[dict[str, Any]]) -> None:
    """Print each server that failed, and why."""
    for each in status:
        if each["error"] is not None:
            _PRINTED.add(each["error"])
            click.echo(f"{click.style('✗', fg='red')} {visible_text(each['error'])}", err=True)


def require_open(status: list[dict[str, Any]]) -> None:
    """Check that no server failed.

    Raises:
        CommandError: One did.
    """
    for each in status:
        if each["error"] is not None:
            _PRINTED.add(each["error"])
            raise CommandError(each["error"], exit_code=Exit.FAILED)


def exit_code(status: list[dict[str, Any]]) -> int:
    """The exit code of a command about these servers."""
    return Exit.FAILED if any(each["error"] is not None for each in status) else Exit.OK
