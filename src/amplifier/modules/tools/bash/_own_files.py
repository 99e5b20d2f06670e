"""What the agent itself runs and imports: a change of it would let the next command run outside of the sandbox.

A folder of the search path that does not exist must not be created either: an empty folder is in its place while a command runs,
and is mounted read-only. Several commands, also of other processes, share such a folder. Each holds a shared lock on it, and the
last one removes it. A sticky bit marks it, so that what a killed process left is recognised. A folder that something was put into
stays.
"""

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

# ── the agent's own ──────────────────────────────────────────────────────────────────────────────


def own_folders() -> list[str]:
    """Where this process was started from, imports from and finds programs: the interpreter, packages, this package, the search path."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    return _distinct([*prefixes, *_own_code(), *search_folders()])


def _own_code() -> list[str]:
    code = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    code += [*site.getsitepackages(), site.getusersitepackages(), PACKAGE]
    return [path for path in _distinct([*code, isolated_python()]) if os.path.exists(path)]  # noqa: PTH110 - False, too, for what may not be looked at


def helper_programs() -> list[str]:
    """Programs that tools of the agent start outside of a sandbox, and the shell; real paths."""
    return [
        os.path.realpath(path)
        for name in ("bwrap", "rg", "bash")
        if (path := find_program(name)) is not None
    ]


def own_files_problem(writable: Iterable[str]) -> str | None:
    """Why no sandbox can keep commands from changing what the agent runs; None if it can.

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
                    f"commands may change {root}, and the agent itself runs from {path}: choose another working "
                    "directory, or install amplifier elsewhere"
                )
        for path in (*own_folders(), sys.executable):
            for link in links_on(path):
                if is_below(link, root) and not any(is_below(link, folder) for folder in inside):
                    return (
                        f"commands may change {root}, and the agent itself runs through the symbolic link {link}, which "
                        "they could replace: make it a folder, or install amplifier elsewhere"
                    )
    return None


def check_search_path(root: str) -> None:
    """Refuse to let commands change a folder of the search path itself, or a link on the way to one; what lies deeper is read-only.

    Raises:
        ValueError: They could.
    """
    for entry in search_folders():
        if os.path.realpath(entry) == root or any(is_below(link, root) for link in links_on(entry)):
            raise ValueError(
                f"commands may change {root}, and the agent starts programs from {entry}, which is on the search path: take one of them "
                "out of the plan or of PATH"
            )


def imported_from(writable: Iterable[str]) -> list[str]:
    """Folders of the import path that commands may change and that are not among the protected ones."""
    own = [os.path.realpath(folder) for folder in own_folders()]
    entries = [os.path.realpath(entry) for entry in sys.path if os.path.exists(entry)]  # noqa: PTH110
    roots = list(writable)
    return [
        entry
        for entry in dict.fromkeys(entries)
        if any(is_below(entry, root) for root in roots)
        and not any(is_below(entry, folder) for folder in own)
    ]


def links_on(path: str) -> Iterator[str]:
    """Every symbolic link that opening a path would follow, by its real folder and its name."""
    pending, folder, followed = Path(path).absolute().parts[1:], "/", 0
    while pending:
        name, *rest = pending
        pending = tuple(rest)
        here = os.path.join(folder, name)  # noqa: PTH118 - text in, text out
        if name == "..":
            folder = os.path.dirname(folder)  # noqa: PTH120
        elif os.path.islink(here) and followed < 40:  # noqa: PTH114 - False if it may not be looked at; as many as the kernel follows
            followed += 1
            yield here
            target = os.readlink(here)  # noqa: PTH115
            folder = "/" if target.startswith("/") else folder
            pending = (*(part for part in target.split("/") if part not in ("", ".")), *pending)
        else:
            folder = here


def _distinct(paths: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(path for path in paths if path))


# ── placeholders ───────────────────────────────────────────────────────────────────────────────────

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
        is_marked = (
            stat.S_ISDIR(mode)
            and bool(mode & stat.S_ISVTX)
            and not mode & (stat.S_IWGRP | stat.S_IWOTH)
        )
        return is_marked and not os.listdir(path)  # noqa: PTH208 - text
    except OSError:
        return False


@contextlib.contextmanager
def folder_of(path: str) -> Iterator[int]:
    """The folder of a path, opened without following links: another command may have replaced one on the way by a link."""
    names: tuple[str, ...] = ("/", *Path(path).parts[1:-1])
    if names[1:4] == ("proc", "self", "fd"):  # a folder that is open already
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
    """What lies at a path, as device and inode; None if nothing does or if a link is on the way to it."""
    try:
        with folder_of(path) as folder:
            found = os.stat(Path(path).name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _hold(path: str) -> int:
    """Make the folder, and lock it against removal; returns its descriptor."""
    name = Path(path).name
    for _ in range(_MOST_TRIES):
        try:
            with folder_of(path) as folder:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(
                        name, _MODE, dir_fd=folder
                    )  # marked at once: another command may look now
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
        fcntl.flock(
            descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # fails while another command holds it
        with folder_of(path) as folder:
            if is_placeholder(path):
                os.rmdir(Path(path).name, dir_fd=folder)
    except OSError:
        return
    finally:
        os.close(descriptor)
