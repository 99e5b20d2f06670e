"""The entry point of the command, which also works without the packages of the extra ``cli``."""

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
        arguments: The arguments. By default those of the process.
    """
    try:
        if not _fill_closed_streams():
            print(
                "amplifier: standard output is closed; there is nowhere to write to",
                file=sys.stderr,
            )
            return Exit.USAGE
        # click belongs to an extra and may be missing.
        from .app import run  # noqa: PLC0415

        return run(arguments)
    # Ctrl-C was pressed while the commands were being imported.
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from amplifier.errors import MissingExtraError  # noqa: PLC0415

        missing = MissingExtraError("the command line", extra="cli", missing="click")
        print(f"amplifier: {missing}", file=sys.stderr)
        return Exit.USAGE


def _fill_closed_streams() -> bool:
    """Replace closed standard streams with the null device.

    Return whether standard output was open.

    Python sets them to None, and the next opened file receives their descriptor. A conversation
    could be opened as descriptor 1, and child processes would write their output into it.
    """
    had_output = sys.stdout is not None
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return True
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        # Child processes need all three as well.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The stream stays open until the process ends.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    return had_output
