"""Tool failures as results for the model, and text of unknown origin made safe for results."""

from __future__ import annotations

import errno

_MAX_SHOWN = 300

_KINDS: dict[int, tuple[str, str]] = {
    errno.ENOENT: ("NotFound", "there is no such file or directory"),
    errno.EACCES: ("PermissionDenied", "permission denied by the operating system"),
    errno.EPERM: ("PermissionDenied", "operation not permitted by the operating system"),
    errno.ENOTDIR: ("NotADirectory", "part of the path is not a directory"),
    errno.EISDIR: ("IsADirectory", "this is a directory"),
    errno.ENAMETOOLONG: ("InvalidPath", "a name in the path is too long for the file system"),
    errno.ENOSPC: ("NoSpace", "no space is left on the device"),
    errno.EDQUOT: ("NoSpace", "the disk quota is used up"),
    errno.EROFS: ("ReadOnly", "the file system is read-only"),
    errno.ELOOP: ("Changed", "a symbolic link appeared here in the meantime"),
    errno.EILSEQ: ("InvalidPath", "the file system does not accept this name"),
    errno.EINVAL: ("InvalidPath", "the file system does not accept this name"),
}


class ToolFailure(Exception):
    """A tool call that failed. It becomes a result with ``success=False``.

    Attributes:
        kind: One word that a program can check.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_from_os(error: OSError, subject: str) -> ToolFailure:
    """Convert an error that the operating system reported about `subject`."""
    kind, message = _KINDS.get(
        error.errno or 0, ("OSError", (error.strerror or type(error).__name__).lower())
    )
    return ToolFailure(kind, f"{subject}: {message}" if subject else message)


def shown(text: str, max_length: int = _MAX_SHOWN) -> str:
    r"""Return a text, shortened and made valid for JSON.

    Bytes of a file name that aren't UTF-8, and lone surrogates, become ``\xff`` or ``\ud800``.
    """
    if not text.isascii():
        text = "".join(
            _spelled(character) if "\ud800" <= character <= "\udfff" else character
            for character in text
        )
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text)} characters)"


def _spelled(surrogate: str) -> str:
    # In file names, Python represents bytes that aren't UTF-8 as surrogates from U+DC80 (PEP 383).
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
