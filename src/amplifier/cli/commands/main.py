"""Where the command starts, before it is known whether the packages it needs are installed.

Above it is the shell, below it `_app`, which needs click and is therefore imported late.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amplifier.cli.terminal.closed_streams import fill_closed_streams
from amplifier.errors import MissingExtraError

__all__ = ["main"]

_USAGE_ERROR = 2
"""The exit code shells and click use for "you called me wrongly", here for "I am not completely installed" as well."""

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: What to use instead of ``sys.argv[1:]``.
    """
    try:
        if not fill_closed_streams():
            print("amplifier: standard output is closed; there is nowhere to write to", file=sys.stderr)
            return _USAGE_ERROR
        return _run(arguments)
    except KeyboardInterrupt:  # before anybody listens: while the commands are being imported
        return _INTERRUPTED
    except MissingExtraError as error:
        print(f"amplifier: {error}", file=sys.stderr)
        return _USAGE_ERROR


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from .app import run  # noqa: PLC0415  # click belongs to an extra and may be missing
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        raise MissingExtraError("the command line", extra="cli", missing="click") from error
    return run(arguments)
