"""Files that a command must not change because something outside of the sandbox executes or obeys them.

Two kinds: what the agent itself runs and imports, which would let the next command run outside, and configuration in a
working directory that git, editors, direnv and clients of MCP servers act upon.

What does not exist must not be created either: an empty folder is in its place while a command runs, and is mounted read-only.
Several commands, also of other processes, share such a folder. Each holds a shared lock on it, and the last one removes it. A
sticky bit marks it, so that what a killed process left is recognised. A folder that something was put into stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path

import attrs

from amplifier._programs import PACKAGE, find_program, is_below, isolated_python, search_folders

logger = logging.getLogger("amplifier.modules.tools")

CONFIGURATION = (
    *(".amplifier", ".envrc", ".mcp.json"),
    *(".vscode", ".idea", ".zed", ".cursor", ".devcontainer", ".claude", ".codex", ".gemini"),
)
"""In a working directory; what does not exist cannot be created either."""
_OF_HOME = (
    *(".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".zshrc", ".zshenv", ".zprofile"),
    *(".zlogin", ".gitconfig", ".vimrc", ".xprofile", ".local/bin"),
)
"""What a shell or git executes, if a working directory is or holds the home folder."""
_MOST_REPOSITORIES = 200
_GIT_FOLDERS = ("hooks",)
_GIT_FILES = ("config", "config.worktree", "commondir", "gitdir")
_REDIRECTIONS = ("commondir", "config.worktree")
"""Of a git folder: git reads its configuration from elsewhere if they exist. An empty folder in their place breaks git."""
_SETTING = re.compile(
    r"(?im)^[ \t]*(?:\[(?P<section>[^]\n]*)\])?[ \t]*(?:(?P<name>hookspath|fsmonitor|path)[ \t]*=[ \t]*"
    r"(?:\"(?P<quoted>[^\"\n]+)\"|(?P<plain>[^\s\"#;][^\n#;]*?)))?[ \t]*(?:[#;].*)?$"
)
"""A line of git's configuration with a section, a setting that names what git executes or includes, or both."""
_WORKTREE = re.compile(r"^\s*worktree\s*=\s*(\S.*?)\s*$", re.MULTILINE)


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
    return [os.path.realpath(path) for name in ("bwrap", "rg", "bash") if (path := find_program(name)) is not None]


def own_files_problem(writable: Iterable[str]) -> str | None:
    """Why no sandbox can keep commands from changing what the agent runs; None if it can.

    Args:
        writable: The folders that commands may change, as real paths.
    """
    for root in writable:
        inside = [folder for folder in map(os.path.realpath, own_folders()) if is_below(folder, root)]
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


def own_files_in(writable: Iterable[str]) -> str | None:
    """That the agent's own files lie in a writable folder, which Landlock cannot take a part out of; None if they do not."""
    for root in writable:
        for folder in map(os.path.realpath, own_folders()):
            if is_below(folder, root):
                return (
                    f"the agent itself runs from {folder}, and Landlock cannot protect a part of {root}: install bubblewrap, or "
                    "install amplifier outside of the working directory"
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
        if any(is_below(entry, root) for root in roots) and not any(is_below(entry, folder) for folder in own)
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


# ── configuration ────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Guarded:
    """Configuration in a folder that commands may change.

    Attributes:
        existing: Files and folders that become read-only; real paths.
        missing: What does not exist and must not be created.
        redirecting: What does not exist, cannot be kept from being created, and is removed if it is.
    """

    existing: list[str] = attrs.field(factory=list)
    missing: list[str] = attrs.field(factory=list)
    redirecting: list[str] = attrs.field(factory=list)

    def add(self, path: str, *, must_exist: bool = False) -> None:
        if not os.path.lexists(path) or is_placeholder(path):
            if not must_exist:
                self.missing.append(path)
        elif not Path(path).is_symlink():  # a link cannot be covered; what it leads to can
            self.existing.append(path)
        elif os.path.realpath(path) != path and Path(path).exists():
            self.existing.append(os.path.realpath(path))


def guarded_files(workspace: str, writable: Iterable[str], unprotected: Iterable[str]) -> Guarded:
    """What is read-only in the working directory and in the repositories below the writable folders.

    Args:
        workspace: The working directory, a real path.
        writable: All folders that commands may change, the working directory among them.
        unprotected: Of the plan: paths below the working directory that commands may change nevertheless.
    """
    found = Guarded()
    for name in CONFIGURATION:
        found.add(f"{workspace}/{name}")
    home = os.path.realpath(Path.home())
    allowed = [f"{workspace}/{path.rstrip('/')}" for path in unprotected]
    for root in writable:
        for name in _OF_HOME if is_below(home, root) else ():
            found.add(f"{home}/{name}")
        for path in _named_by_git(root, home):
            found.add(path)
        if f"{root}/.git" in allowed:
            continue
        for folder in _git_folders(root):
            for name in _GIT_FOLDERS:
                found.add(f"{folder}/{name}")
            for name in _GIT_FILES:
                found.add(f"{folder}/{name}", must_exist=True)
            found.redirecting.extend(path for name in _REDIRECTIONS if not os.path.lexists(path := f"{folder}/{name}"))
        for file in _git_link_files(root):
            found.add(file)

    def kept(paths: list[str]) -> list[str]:
        inside = [path for path in dict.fromkeys(paths) if any(is_below(path, root) for root in writable)]
        return [path for path in inside if not any(is_below(path, each) for each in allowed)]

    return Guarded(kept(found.existing), kept(found.missing), kept(found.redirecting))


def _git_folders(root: str) -> list[str]:
    """The git folders of a repository, of its submodules and of its worktrees; real paths."""
    pending, found, seen = [f"{root}/.git"], list[str](), set[str]()
    if root.endswith(".git") or all(os.path.lexists(f"{root}/{name}") for name in ("HEAD", "objects", "refs")):
        pending.append(root)
    while pending:
        path = os.path.realpath(pending.pop(0))
        if path in seen:
            continue
        seen.add(path)
        _check_number(seen, root)
        if Path(path).is_file():  # a worktree or a submodule has a file that names its git folder
            pending.append(os.path.join(os.path.dirname(path), _named_in(path, "gitdir:")))  # noqa: PTH118, PTH120
        if not Path(path).is_dir():
            continue
        found.append(path)
        if Path(path, "commondir").is_file():
            pending.append(os.path.join(path, _named_in(f"{path}/commondir", "")))  # noqa: PTH118
        for below in ("modules", "worktrees"):
            pending += _repositories_below(f"{path}/{below}")
    return found


def _named_by_git(root: str, home: str) -> Iterator[str]:
    """What the configurations of a repository and of its user name: folders of hooks, monitors, and files with more configuration."""
    own = [f"{folder}/{name}" for folder in _git_folders(root) for name in ("config", "config.worktree")]
    if not own:
        return
    of_user = [os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config", f"{home}/.gitconfig", "/etc/gitconfig"]
    waiting, seen = [*own, f"{of_user[0]}/git/config", *of_user[1:]], set[str]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        _check_number(seen, root)
        section = ""
        for setting in _SETTING.finditer(_text(file)):
            section = (setting["section"] or section).lower()
            name, value = (setting["name"] or "").lower(), setting["quoted"] or setting["plain"] or ""
            if name == "fsmonitor":
                value = (
                    value.split()[0] if "/" in value else ""
                )  # a word is true, false or a program on the search path
            base = os.path.dirname(file) if name == "path" else root  # noqa: PTH120 - text in, text out
            path = os.path.normpath(os.path.join(base, os.path.expanduser(value)))  # noqa: PTH111, PTH118
            if not value or (name == "path" and not section.startswith("include")):
                continue
            if name == "path":
                waiting.append(path)
            yield path


def _is_repository(folder: str) -> bool:
    """Whether a folder below another git folder is one; a command cannot remove the last two, which are protected."""
    return any(Path(folder, name).is_file() for name in ("HEAD", "config", "commondir"))


def _repositories_below(folder: str, depth: int = 4) -> list[str]:
    """Git folders of submodules; the name of one may have slashes."""
    pending, found = [(folder, depth)], list[str]()
    while pending:
        folder, depth = pending.pop()
        try:
            with os.scandir(folder) as entries:
                folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        found += filter(_is_repository, folders)
        pending += [(path, depth - 1) for path in folders if depth and path not in found]
        _check_number([*found, *pending], folder)
    return found


def _check_number(repositories: Sized, folder: str) -> None:
    """Refuse to go on with a part of them: a command could make so many that the rest is not protected."""
    if len(repositories) > _MOST_REPOSITORIES:
        raise ValueError(f"more than {_MOST_REPOSITORIES} git repositories below {folder}; list .git in unprotected")


def _git_link_files(root: str) -> list[str]:
    """Files named ``.git``: of a worktree, and in the folders of submodules."""
    found = [f"{root}/.git"]
    for folder in _repositories_below(f"{root}/.git/modules"):
        named = _WORKTREE.search(_text(f"{folder}/config"))
        if named is not None:
            found.append(os.path.realpath(f"{folder}/{named[1]}/.git"))
    return [path for path in found if Path(path).is_file()]


def _named_in(file: str, prefix: str) -> str:
    return _text(file).removeprefix(prefix).strip()


def _text(file: str) -> str:
    """The beginning of a regular file; a command may have put a pipe in its place."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, 1 << 16).decode("utf-8", "surrogateescape") if is_regular else ""
    finally:
        os.close(descriptor)


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
