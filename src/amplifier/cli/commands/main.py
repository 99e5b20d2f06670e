"""The entry point of the command, which works before it is known whether the packages of the extra ``cli`` are installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.terminal.closed_streams import fill_closed_streams

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: What to use instead of ``sys.argv[1:]``.
    """
    try:
        if not fill_closed_streams():
            print("amplifier: standard output is closed; there is nowhere to write to", file=sys.stderr)
            return Exit.USAGE
        from .app import run  # noqa: PLC0415  # click belongs to an extra and may be missing

        return run(arguments)
    except KeyboardInterrupt:  # while the commands are being imported
        return Exit.INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from amplifier.errors import MissingExtraError  # noqa: PLC0415  # only needed after this failure

        missing = MissingExtraError("the command line", extra="cli", missing="click")
        print(f"amplifier: {missing}", file=sys.stderr)
        return Exit.USAGE
