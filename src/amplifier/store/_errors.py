"""What can be wrong with a store; a full disk and the like are the `OSError` they would be elsewhere, with the file's name."""

from __future__ import annotations

from pathlib import Path

from amplifier.errors import AmplifierError


class StoreDamagedError(AmplifierError):
    """The file does not hold what was written to it; nothing was read from it and nothing was changed.

    Attributes:
        path: The file.
        reason: What is wrong.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: {reason}; nothing was read from it and the file was left as it is: "
            "restore it from a backup, or move it away to begin anew"
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason), self.__dict__)


class SessionLockedError(AmplifierError):
    """Another session, in this process or another, has the conversation open; a conversation has one writer.

    Attributes:
        path: The session's folder.
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


class UnsafeFolderError(AmplifierError):
    """Another user can read or change what is stored, and this process cannot or should not take that right away.

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
