"""What can be wrong with a conversation's file; a full disk and the like stay the `OSError` they are, with the file's name."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amplifier.errors import AmplifierError


class LogDamagedError(AmplifierError):
    """The file does not hold what was written to it; nothing was read from it and nothing was changed.

    Attributes:
        path: The file.
        line: The first line that is wrong, counted from 1; None where the file as a whole is.
        reason: What is wrong.
    """

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        place = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(
            f"{place}: {reason}; the conversation was not loaded and the file was left as it is: "
            "restore it from a backup, or move it away to begin a new conversation"
        )
        self.path = path
        self.line = line
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.line, self.reason), self.__dict__)


class LogLockedError(AmplifierError):
    """Another session, in this process or another, has the conversation open; a conversation has one writer.

    Attributes:
        path: The conversation's folder.
        holder: The process that has it open, in words, where it is known.
    """

    def __init__(self, path: Path, holder: str | None = None) -> None:
        who = f" ({holder})" if holder else ""
        super().__init__(
            f"{path}: another session has this conversation open{who}; close that session first, or use another session id"
        )
        self.path = path
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.holder), self.__dict__)


class JournalError(AmplifierError):
    """The step journal could not be written, so the turn ended; the error of the system is the cause.

    Attributes:
        path: The journal.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self._message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self._message), self.__dict__)


class UnsafeFolderError(AmplifierError):
    """Another user can read or change the conversation, and this process cannot or should not take that right away.

    Attributes:
        path: The folder or file.
        reason: What is wrong with it.
        fix: A command that repairs it.
    """

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(
            f"{path}: {reason}; the conversation was not opened, because another user could have written it: "
            f"use another folder or session id, or, if you trust what is in it, run: {fix}"
        )
        self.path = path
        self.reason = reason
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason, self.fix), self.__dict__)


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Put the file and the module into the message of an `OSError`: of a file that is open, the system names neither.

    Args:
        path: The conversation's file.
        what: What is being done, such as ``store the conversation``.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and Path(error.filename).is_absolute():
            raise
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "correct that"
        text = (
            f"{error.strerror or error}, so context-persistent could not {what}; {advice}, then go on with the session"
        )
        raise OSError(error.errno, text, str(path)) from error
