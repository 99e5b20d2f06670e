"""The files that the agent itself runs and imports, which commands must not change."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from amplifier._internal.programs import (
    PACKAGE,
    find_program,
    is_below,
    isolated_python,
    search_folders,
)

# ── the agent's own files ─────────────────────────────────────────────────────────────────────────

_MAX_LINKS = 40
"""Maximum number of links that the kernel follows."""


def own_folders() -> list[str]:
    """Return the folders of the interpreter, the packages, this package and the search path."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    return _distinct([*prefixes, *_own_code(), *search_folders()])


def _own_code() -> list[str]:
    code = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    code += [*site.getsitepackages(), site.getusersitepackages(), PACKAGE]
    # os.path.exists() is also False for a path that may not be read.
    paths = _distinct([*code, isolated_python()])
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110


def helper_programs() -> list[str]:
    """Return the real paths of the shell and of programs that tools run outside of a sandbox."""
    return [
        os.path.realpath(path)
        for name in ("bwrap", "rg", "bash")
        if (path := find_program(name)) is not None
    ]


def own_files_problem(writable: Iterable[str]) -> str | None:
    """Return why a sandbox can't protect the agent's own files, or None if it can.

    Args:
        writable: The folders that commands may change, as real paths.
    """
    for root in writable:
        inside = [
            folder for folder in map(os.path.realpath, own_folders()) if is_below(folder, root)
        ]
        for path in _own_code():
            if is_below(root, os.path.realpath(path)):
                return (
                    f"commands may change {root}, and the agent itself runs from {path}: choose "
                    "another working directory, or install amplifier elsewhere"
                )
        for path in (*own_folders(), sys.executable):
            for link in links_on(path):
                if is_below(link, root) and not any(is_below(link, folder) for folder in inside):
                    return (
                        f"commands may change {root}, and the agent itself runs through the "
                        f"symbolic link {link}, which they could replace: make it a folder, or "
                        "install amplifier elsewhere"
                    )
    return None


def check_search_path(root: str) -> None:
    """Check that commands can't change a folder of the search path, or a link on the way to one.

    Folders of the search path that are deeper are mounted read-only.

    Raises:
        ValueError: Commands could change such a folder or link.
    """
    for entry in search_folders():
        if os.path.realpath(entry) == root or any(is_below(link, root) for link in links_on(entry)):
            raise ValueError(
                f"commands may change {root}, and the agent starts programs from {entry}, which is "
                "on the search path: remove one of them from the plan or from PATH"
            )


def imported_from(writable: Iterable[str]) -> list[str]:
    """Return the folders of the import path that commands may change and that aren't protected."""
    own = [os.path.realpath(folder) for folder in own_folders()]
    existing = filter(os.path.exists, sys.path)
    roots = list(writable)
    return [
        entry
        for entry in dict.fromkeys(map(os.path.realpath, existing))
        if any(is_below(entry, root) for root in roots)
        and not any(is_below(entry, folder) for folder in own)
    ]


def links_on(path: str) -> Iterator[str]:
    """Yield every symbolic link that opening a path would follow.

    Each link is yielded as its real folder and its name.
    """
    pending, folder, followed = Path(path).absolute().parts[1:], "/", 0
    while pending:
        name, *rest = pending
        pending = tuple(rest)
        here = os.path.join(folder, name)  # noqa: PTH118 — text in, text out
        if name == "..":
            folder = os.path.dirname(folder)  # noqa: PTH120
        elif os.path.islink(here) and followed < _MAX_LINKS:  # noqa: PTH114
            followed += 1
            yield here
            target = os.readlink(here)  # noqa: PTH115
            folder = "/" if target.startswith("/") else folder
            pending = (*(part for part in target.split("/") if part not in ("", ".")), *pending)
        else:
            folder = here


def _distinct(paths: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(path for path in paths if path))


# ── placeholders ──────────────────────────────────────────────────────────────────────────────────
# Commands must not create a missing folder of the search path. So an empty folder takes its place
# while a command runs, and is mounted read-only. Several commands, even of several processes, share
# such a folder. Each holds a shared lock on it, and the last one removes it. A sticky bit marks the
# folder, so that one that a killed process left behind is recognised. A folder that isn't empty is
# kept.

_MODE = 0o1755
_MAX_TRIES = 20


@contextlib.contextmanager
def placeholders(paths: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Keep an empty folder at each path inside the context.

    Paths where neither this process nor a command may create a folder are left out.

    Raises:
        ValueError: A folder can't be made, so a command could create something there.
    """
    held = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            with contextlib.suppress(PermissionError):
                stack.callback(_release, path, _hold(path))
                held.append(path)
        yield tuple(held)


def is_placeholder(path: str) -> bool:
    """Return whether a path is an empty folder that `placeholders` has made."""
    try:
        mode = Path(path).lstat().st_mode
        is_marked = (
            stat.S_ISDIR(mode)
            and bool(mode & stat.S_ISVTX)
            and not mode & (stat.S_IWGRP | stat.S_IWOTH)
        )
        return is_marked and not os.listdir(path)  # noqa: PTH208 — text
    except OSError:
        return False


@contextlib.contextmanager
def folder_of(path: str) -> Iterator[int]:
    """Open the folder of a path without following links.

    Another command may have replaced a folder on the way with a link.
    """
    names: tuple[str, ...] = ("/", *Path(path).parts[1:-1])
    if names[1:4] == ("proc", "self", "fd"):
        # The path starts at an open folder.
        names = ("/".join(("", *names[1:5])), *names[5:])
    with contextlib.ExitStack() as opened:
        folder = None
        for name in names:
            follow = 0 if folder is None else os.O_NOFOLLOW
            folder = os.open(
                name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | follow, dir_fd=folder
            )
            opened.callback(os.close, folder)
        assert folder is not None
        yield folder


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file. None if it doesn't exist or is behind a link."""
    try:
        with folder_of(path) as folder:
            info = os.stat(Path(path).name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _hold(path: str) -> int:
    """Make a folder, lock it against removal, and return its descriptor."""
    name = Path(path).name
    for _ in range(_MAX_TRIES):
        try:
            with folder_of(path) as folder:
                # The mode marks it at once, because another command may check it now.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _MODE, dir_fd=folder)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            # Another command has just removed it.
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
    raise ValueError(f"{path} cannot be protected: it is removed after every attempt")


def _release(path: str, descriptor: int) -> None:
    try:
        # This call raises while another command holds the lock.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with folder_of(path) as folder:
            if is_placeholder(path):
                os.rmdir(Path(path).name, dir_fd=folder)
    except OSError:
        return
    finally:
        os.close(descriptor)
