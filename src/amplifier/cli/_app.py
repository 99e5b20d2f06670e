"""The list of commands. Above it `_main`, below it one file per noun."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ._plan import plan

__all__ = ["run"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="amplifier")
def app() -> None:
    """Run and examine Amplifier agents."""


app.add_command(plan)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return the exit code."""
    try:
        # click always ends with SystemExit: 2 after a usage error, 1 after Ctrl-C.
        app.main(args=arguments, prog_name="amplifier")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
