"""Exit codes of commands, and the errors that carry them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. Codes above 128 are the shell's codes for processes ended by a signal."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BUDGET = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """The command can't continue. The message has the reason and the remedy.

    Attributes:
        exit_code: The exit code of the command.
    """

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OutputLostError(CommandError):
    """The answer could not be written. This is a failure even if the turn succeeded."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the answer could not be written to standard output: {reason}", exit_code=Exit.FAILED
        )
