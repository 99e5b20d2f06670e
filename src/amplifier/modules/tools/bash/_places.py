"""Which parts of the file system a command in a sandbox sees and may change; asks the file system, starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from amplifier._programs import is_below, isolated_python

from ..._shared.session import default_sessions_directory
from ._options import BashOptions
from ._own_files import (
    check_search_path,
    guarded_files,
    helper_programs,
    identity,
    is_placeholder,
    links_on,
    own_folders,
)

# Where other users, other programs and services keep what is theirs.
_HIDDEN = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/var/lib/docker", "/boot", "/lost+found")
_HIDDEN_FILES = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/ssh")
# Programs that people install into their home folder; no credentials among them.
_TOOLS_OF_HOME = (
    *(".pyenv", ".rbenv", ".nvm", ".volta", ".asdf", ".sdkman", ".rustup", ".cargo/bin", ".bun/bin", ".deno/bin"),
    *("go/bin", ".local/bin", ".local/lib", ".local/share/uv/python", ".local/share/uv/tools", ".local/share/mise"),
    *(".local/share/pnpm", ".linuxbrew", "miniconda3", "anaconda3", "miniforge3"),
)
# Inside of a working directory that is a home folder.
_SECRETS_OF_HOME = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".pgpass", ".git-credentials"),
    *(".password-store", ".config", ".local/share/keyrings", ".local/state", ".mozilla", ".npmrc", ".pypirc"),
    *(".bash_history", ".zsh_history"),
)


@attrs.frozen(kw_only=True)
class Places:
    """What of the file system a command gets to see; real paths.

    Attributes:
        hidden: Not seen, but for what is readable or writable below.
        readable: Seen although it is below something hidden.
        writable: Can be changed.
        pinned: Folders below something writable that cannot be renamed or removed: what follows lies in them.
        protected: Cannot be changed although it is below something writable.
        missing: Does not exist, and cannot be created although it is below something writable.
        redirecting: Does not exist, and is removed if the command creates it.
        hidden_inside: Not seen although it is below something writable.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    pinned: tuple[str, ...]
    protected: tuple[str, ...]
    missing: tuple[str, ...]
    redirecting: tuple[str, ...]
    hidden_inside: tuple[str, ...]

    def changeable(self) -> dict[str, tuple[int, int] | None]:
        """What is mounted writable, and what is mounted where commands may change something: path, and what lies there now."""
        mounts = {*self.writable, *self.pinned, *self.protected, *self.missing}
        return {path: identity(path) for path in sorted(mounts)}


class PlaceFinder:
    """Resolves the paths of the plan once; commands could replace links and folders on the way to them later.

    Args:
        options: With the paths of the plan.
        directory: The first working directory.

    Raises:
        ValueError: A path of the plan goes through a link that commands may change, or is on the search path.
    """

    def __init__(self, options: BashOptions, directory: str) -> None:
        self._options = options
        self._home = _real("~")
        self._state = {
            _real(str(default_sessions_directory().parent)),
            *map(_real, filter(None, [os.environ.get("AMPLIFIER_HOME")])),
        }
        self._asked = {_real(path) for path in options.hidden}
        workspace = os.path.realpath(directory)
        given = [str(Path(path).expanduser()) for path in options.writable]
        roots = [workspace, *given, *map(os.path.realpath, given)]
        self.writable: tuple[str, ...] = tuple(_resolved(path, roots, "writable") for path in options.writable)
        self._readable = [_resolved(path, (workspace, *self.writable), "readable") for path in options.readable]
        self._readable += [f"{self._home}/{name}" for name in _TOOLS_OF_HOME]
        self._readable += [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
        # The first process in bubblewrap is a Python.
        self._readable += [folder for folder in (_real(sys.base_prefix), isolated_python()) if folder != self._home]
        self._helpers = helper_programs()
        self._changeable = {workspace, *self.writable}
        for folder in self._changeable:
            check_search_path(folder)
        self._workspaces = {directory: workspace}

    def workspace(self, directory: str) -> str:
        """The real path of a working directory.

        Raises:
            ValueError: It cannot be confined to, it is not what it was, or a link on the way to it can be changed by commands.
        """
        workspace = os.path.realpath(directory)
        if workspace == "/":
            raise ValueError("the working directory is /, and a sandbox cannot confine a command to that")
        check_search_path(workspace)
        if (before := self._workspaces.get(directory, workspace)) != workspace:
            raise ValueError(
                f"the working directory {directory} was {before} when it was first used and is {workspace} now; commands of "
                "another session may have changed a link. Open a new session if you did"
            )
        for folder in self.writable:
            if os.path.realpath(folder) != folder:
                raise ValueError(f"{folder} was a folder that commands may change and is a symbolic link now")
        for link in links_on(directory):
            if any(is_below(link, folder) for folder in self._changeable):
                raise ValueError(
                    f"the working directory {directory} is reached by the symbolic link {link}, which commands may change; "
                    "name the folder itself"
                )
        self._changeable.add(workspace)
        self._workspaces[directory] = workspace
        return workspace

    def places(self, workspace: str, temporary: str | None) -> Places:
        """The places for one command.

        Args:
            workspace: The working directory, from `workspace`.
            temporary: A folder for temporary files.
        """
        hidden = {*map(_real, (*_HIDDEN, *_HIDDEN_FILES)), self._home, *self._state, *self._asked}
        if temporary is not None:  # Landlock; bubblewrap has devices of its own
            hidden.add("/dev")
        readable = [*self._readable]
        if self._options.network:
            readable.append(_real("/etc/resolv.conf"))  # often a link into /run
        writable = [workspace, *self.writable, *([] if temporary is None else [temporary])]
        secrets = {f"{self._home}/{name}" for name in _SECRETS_OF_HOME}

        def inside(paths: Iterable[str]) -> list[str]:
            """Those that are below something writable, and are not reached by a link."""
            return sorted(
                path
                for path in set(paths)
                if path not in writable
                and any(is_below(path, folder) for folder in writable)
                and os.path.realpath(path) == path
            )

        hidden_inside = [path for path in inside({*secrets, *self._asked, *self._state}) if os.path.lexists(path)]

        def seen(paths: Iterable[str]) -> list[str]:
            return [path for path in inside(paths) if not any(is_below(path, each) for each in hidden_inside)]

        own = {*map(_real, own_folders()), *self._helpers}
        guarded = guarded_files(workspace, writable, self._options.unprotected)
        protected = seen({*(path for path in own if os.path.lexists(path)), *guarded.existing})
        missing = {_first_missing(path) for path in seen({*(own - set(protected)), *guarded.missing})}
        missing = {
            path
            for path in missing
            if inside_another(path, writable) and (not os.path.lexists(path) or is_placeholder(path))
        }
        nested = [folder for folder in writable if inside_another(folder, writable)]
        covered = (*hidden_inside, *protected, *missing, *nested)
        pinned = {parent for path in covered for parent in _parents_below(path, writable)}
        return Places(
            hidden=tuple(sorted(path for path in hidden if os.path.lexists(path) and path not in writable)),
            readable=tuple(
                path
                for path in dict.fromkeys(readable)
                if os.access(path, os.F_OK)  # False for one that this user cannot look at
                and any(is_below(path, other) and path != other for other in hidden)
                and not any(is_below(path, folder) for folder in writable)
            ),
            writable=tuple(sorted(writable)),
            pinned=tuple(sorted(pinned - set(writable))),
            protected=tuple(path for path in protected if not inside_another(path, protected)),
            missing=tuple(sorted(path for path in missing if not inside_another(path, protected))),
            redirecting=tuple(guarded.redirecting),
            hidden_inside=tuple(hidden_inside),
        )


def inside_another(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is below one of some folders and not that folder itself."""
    return any(is_below(path, folder) and path != folder for folder in folders)


def _first_missing(path: str) -> str:
    while not os.path.lexists(parent := os.path.dirname(path)):  # noqa: PTH120 - text in, text out
        path = parent
    return path


def _parents_below(path: str, writable: Iterable[str]) -> Iterator[str]:
    """The folders between a writable one and what lies in it."""
    roots = list(writable)
    parent = os.path.dirname(path)  # noqa: PTH120
    while inside_another(parent, roots):
        yield parent
        parent = os.path.dirname(parent)  # noqa: PTH120


def _resolved(path: str, roots: Iterable[str], name: str) -> str:
    given = str(Path(path).expanduser())
    for link in links_on(given):
        for root in roots:
            if is_below(link, root) and link != root:
                raise ValueError(
                    f"{name}: {path} is reached by the symbolic link {link}, which commands may change because {root} is "
                    "writable; name the folder itself"
                )
    return os.path.realpath(given)


def visible_roots(hidden: Sequence[str], folder: str = "/") -> Iterator[str]:
    """The largest files and folders that contain nothing hidden; Landlock can only allow."""
    try:
        names = [entry.name for entry in Path(folder).iterdir()]
    except OSError:
        return
    for name in names:
        path = f"{folder.rstrip('/')}/{name}"
        if path in hidden:
            continue
        if any(is_below(other, path) for other in hidden):
            yield from visible_roots(hidden, path)
        else:
            yield path


def link_home(places: Places, folder: str) -> None:
    """Make a folder look like the home, with links to what is readable there.

    Landlock can only refuse to open a file. Programs take that as an error, and a file that is missing as normal.
    """
    home = _real("~")
    for path in places.readable:
        link = Path(folder, path.removeprefix(f"{home}/"))
        if path.startswith(f"{home}/") and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)


def _real(path: str) -> str:
    return os.path.realpath(Path(path).expanduser())
