"""How a command ends: the exit codes, and the error that carries one to the shell."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. Those above 128 are what a shell shows for a process that a signal ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BUDGET = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """The command cannot go on; the message gives the user the reason and what to do.

    Attributes:
        exit_code: What the shell gets.
    """

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OutputLostError(CommandError):
    """The answer exists and could not be written: a failure, whatever the turn did."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the answer could not be written to standard output: {reason}", exit_code=Exit.FAILED
        )
