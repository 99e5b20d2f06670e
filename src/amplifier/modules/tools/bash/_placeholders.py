"""Keeps files from being created by a command: an empty folder is in their place while it runs, and is mounted read-only.

Several commands, also of other processes, share such a folder. Each holds a shared lock on it, and the last one removes it. A
sticky bit marks it, so that what a killed process left is recognised. A folder that something was put into stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger("amplifier.modules.tools")

_MODE = 0o1755
_MOST_TRIES = 20


@contextlib.contextmanager
def placeholders(paths: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Have an empty folder at each path inside the context, but for those where neither we nor a command may create one.

    Raises:
        ValueError: One cannot be made, so a command could create something there.
    """
    held = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            with contextlib.suppress(PermissionError):
                stack.callback(_release, path, _hold(path))
                held.append(path)
        yield tuple(held)


def is_placeholder(path: str) -> bool:
    """Whether a folder was made here and is empty."""
    try:
        mode = Path(path).lstat().st_mode
        is_marked = stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX) and not mode & (stat.S_IWGRP | stat.S_IWOTH)
        return is_marked and not os.listdir(path)  # noqa: PTH208 - text
    except OSError:
        return False


@contextlib.contextmanager
def _folder_of(path: str) -> Iterator[int]:
    """The folder of a path, opened without following links: another command may have replaced one on the way by a link."""
    with contextlib.ExitStack() as opened:
        folder = None
        for name in ("/", *Path(path).parts[1:-1]):
            folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, folder)
        assert folder is not None
        yield folder


def identity(path: str) -> tuple[int, int] | None:
    """What lies at a path, as device and inode; None if nothing does or if a link is on the way to it."""
    try:
        with _folder_of(path) as folder:
            found = os.stat(Path(path).name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _hold(path: str) -> int:
    """Make the folder, and lock it against removal; returns its descriptor."""
    name = Path(path).name
    for _ in range(_MOST_TRIES):
        try:
            with _folder_of(path) as folder:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _MODE, dir_fd=folder)  # marked at once: another command may look now
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:  # another command has just removed it
            continue
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise PermissionError(error.errno, error.strerror) from None
            raise ValueError(f"{path} cannot be protected: {error.strerror}") from None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if Path(path).lstat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
    raise ValueError(f"{path} cannot be protected: it is removed again and again")


def _release(path: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while another command holds it
        with _folder_of(path) as folder:
            if is_placeholder(path):
                os.rmdir(Path(path).name, dir_fd=folder)
    except OSError:
        return
    finally:
        os.close(descriptor)


def remove_redirections(paths: Iterable[str]) -> None:
    """Remove files that would make git read its configuration from elsewhere, and that a command has just created."""
    for path in paths:
        name = Path(path).name
        with contextlib.suppress(OSError), _folder_of(path) as folder:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            logger.warning("tool bash: a command created %s, which leads git to another configuration; removed", path)
            if stat.S_ISDIR(mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
