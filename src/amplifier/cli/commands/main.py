"""The entry point of the command, which works before it is known whether the packages of the extra ``cli`` are installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from amplifier.cli._exit_codes import Exit

_LAST_STANDARD = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: What to use instead of ``sys.argv[1:]``.
    """
    try:
        if not _fill_closed_streams():
            print(
                "amplifier: standard output is closed; there is nowhere to write to",
                file=sys.stderr,
            )
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


def _fill_closed_streams() -> bool:
    """Put the null device in the place of standard streams that the parent has closed; returns whether standard output was open.

    Python has None in their place, and the next file that is opened gets their descriptor: a conversation could be opened as
    descriptor 1, and child processes would write their output into it.
    """
    had_output = sys.stdout is not None
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return True
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(descriptor, True)  # child processes need all three as well
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
    return had_output
