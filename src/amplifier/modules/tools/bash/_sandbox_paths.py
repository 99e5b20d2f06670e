"""The view of the file system that a command in a sandbox gets."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import attrs

from amplifier._internal.programs import is_below, isolated_python

from ..._shared.git_configuration import real_path
from ..._shared.place_sweep import Swept
from ..._shared.protected_places import ProtectedPlaces, own_places
from ..._shared.session import default_sessions_directory
from ._options import BashOptions
from ._protected_paths import (
    check_search_path,
    helper_programs,
    identity,
    is_placeholder,
    links_on,
    own_folders,
)

# These folders and files belong to other users, programs and services.
_HIDDEN = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/var/lib/docker", "/boot", "/lost+found")
_HIDDEN_FILES = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssh",
)
# People install programs in these folders of their home folder, which have no credentials.
_TOOLS_OF_HOME = (
    *(
        ".pyenv",
        ".rbenv",
        ".nvm",
        ".volta",
        ".asdf",
        ".sdkman",
        ".rustup",
        ".cargo/bin",
        ".bun/bin",
        ".deno/bin",
    ),
    *(
        "go/bin",
        ".local/bin",
        ".local/lib",
        ".local/share/uv/python",
        ".local/share/uv/tools",
        ".local/share/mise",
    ),
    *(".local/share/pnpm", ".linuxbrew", "miniconda3", "anaconda3", "miniforge3"),
)
# A shell or git executes these files, if the home folder is in a working directory.
_OF_HOME = (
    *(
        ".profile",
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".zshrc",
        ".zshenv",
        ".zprofile",
    ),
    *(".zlogin", ".gitconfig", ".vimrc", ".xprofile", ".local/bin"),
)
_MAX_MOUNTS = 50
"""Maximum number of mounts for protected paths, because the time for each grows with their number.

Paths that existed at the start take precedence, and then those nearest to the root.
"""
_MAX_DEPTH = 2
_MAX_ENTRIES = 2_000
# These names are hidden in a working directory that is a home folder.
_SECRETS_OF_HOME = (
    *(
        ".ssh",
        ".gnupg",
        ".aws",
        ".azure",
        ".kube",
        ".docker",
        ".netrc",
        ".pgpass",
        ".git-credentials",
    ),
    *(
        ".password-store",
        ".config",
        ".local/share/keyrings",
        ".local/state",
        ".mozilla",
        ".npmrc",
        ".pypirc",
    ),
    *(".bash_history", ".zsh_history"),
)


@attrs.frozen(kw_only=True)
class SandboxView:
    """The view of the file system for one command. All paths are real paths.

    Attributes:
        hidden: Paths that are hidden, except for readable and writable ones below.
        readable: Paths that are visible although they are below a hidden one.
        writable: Paths that can be changed.
        pinned: Folders below a writable path that can't be renamed or removed, because protected or
            hidden paths are in them.
        protected: Paths that can't be changed although they are below a writable one.
        missing: Paths that don't exist and can't be created, although they are below a writable
            one.
        hidden_inside: Paths that are hidden although they are below a writable or readable one.
        sockets: Sockets that are covered, because a read-only mount doesn't prevent connections.
        repositories: The protected paths that belong to git.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    pinned: tuple[str, ...]
    protected: tuple[str, ...]
    missing: tuple[str, ...]
    hidden_inside: tuple[str, ...]
    sockets: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()

    def mounts(self) -> dict[str, tuple[int, int] | None]:
        """Return the mounts in or at writable folders, with their present identity."""
        mounts = {*self.writable, *self.pinned, *self.protected, *self.missing}
        return {path: identity(path) for path in sorted(mounts)}


class SandboxResolver:
    """Resolves the paths of the plan once, because commands could replace links and folders later.

    Args:
        options: The options with the paths of the plan.
        directory: The first working directory.
        protected: The protected paths.

    Raises:
        ValueError: A path of the plan goes through a link that commands may change, or is on the
            search path.
    """

    def __init__(self, options: BashOptions, directory: str, protected: ProtectedPlaces) -> None:
        self._options = options
        self.home: str = _real("~")
        self._state = {
            _real(str(default_sessions_directory().parent)),
            *map(_real, filter(None, [os.environ.get("AMPLIFIER_HOME")])),
        }
        self._asked = {_real(path) for path in options.hidden}
        workspace = os.path.realpath(directory)
        paths = [str(Path(path).expanduser()) for path in options.writable]
        roots = [workspace, *paths, *map(os.path.realpath, paths)]
        self.writable: tuple[str, ...] = tuple(
            _resolved(path, roots, "writable") for path in options.writable
        )
        self._readable = [
            _resolved(path, (workspace, *self.writable), "readable") for path in options.readable
        ]
        programs = [f"{self.home}/{name}" for name in _TOOLS_OF_HOME]
        programs += [
            folder
            for folder in os.environ.get("PATH", "").split(os.pathsep)
            if folder.startswith("/")
        ]
        # The first process in bubblewrap is a Python.
        programs += [_real(sys.base_prefix), isolated_python()]
        # A search path that contains the home folder itself must not make all of it visible.
        private = {self.home, *self._state, *self._asked, *map(_real, _HIDDEN)}
        self._readable += [
            path
            for path in programs
            if not any(is_below(folder, os.path.realpath(path)) for folder in private)
        ]
        self._helpers = helper_programs()
        self.protected: ProtectedPlaces = protected
        self._lock = threading.Lock()
        self._first: set[tuple[int, int]] | None = None
        self._made: set[tuple[int, int]] = set()
        self._changeable = {workspace, *self.writable}
        for folder in self._changeable:
            check_search_path(folder)
        self._workspaces = {directory: workspace}

    def workspace(self, directory: str) -> str:
        """Return the real path of a working directory.

        Raises:
            ValueError: A command can't be confined to it, it isn't the same as before, or commands
                may change a link on the way to it.
        """
        workspace = os.path.realpath(directory)
        if workspace == "/":
            raise ValueError(
                "the working directory is /, and a sandbox cannot confine a command to that"
            )
        check_search_path(workspace)
        if (before := self._workspaces.get(directory, workspace)) != workspace:
            raise ValueError(
                f"the working directory {directory} was {before} when it was first used and is "
                f"{workspace} now; commands of another session may have changed a link. Open a new "
                "session if you did"
            )
        for folder in self.writable:
            if os.path.realpath(folder) != folder:
                raise ValueError(
                    f"{folder} was a folder that commands may change and is a symbolic link now"
                )
        for link in links_on(directory):
            if any(is_below(link, folder) for folder in self._changeable):
                raise ValueError(
                    f"the working directory {directory} is reached by the symbolic link {link}, "
                    "which commands may change; name the folder itself"
                )
        self._changeable.add(workspace)
        self._workspaces[directory] = workspace
        return workspace

    def roots(self, workspace: str) -> list[str]:
        """Return the folders that commands may change, without those that are below another one."""
        writable = sorted({workspace, *self.writable})
        return [folder for folder in writable if not inside_another(folder, writable)]

    def look(self, workspace: str) -> Swept:
        """Return the protected paths that exist now."""
        skip = [*own_places(), *self._state, *self._asked]
        swept = self.protected.sweep.look(self.roots(workspace), skip=skip, second_names=True)
        identities = set(swept.places.values())
        with self._lock:
            if self._first is None:
                self._first = identities
            # Another folder may get the inode of a removed folder.
            self._made &= identities
        return swept

    def record_made(
        self, before: Swept, after: Swept, *, by_git: Container[str], aside: Container[str]
    ) -> None:
        """Record repositories and copies that a command has made, and that are allowed.

        They are compared after each command instead of being mounted. A folder with a mount in it
        couldn't be removed, and git calls in it would need the broker.

        Args:
            before: The protected paths before the command.
            after: The protected paths after it.
            by_git: Paths that git has written in work trees. In a work tree that a command has
                made, these paths count as made by the command.
            aside: Paths that the user has to allow.
        """
        old = set(before.places.values())
        new = {
            path: inode
            for path, inode in after.places.items()
            if inode not in old and path not in after.led
        }
        with self._lock:
            repositories = {
                path
                for path in after.repositories
                if new.get(path) or after.places.get(path) in self._made
            }
            trees = {path.removesuffix("/.git") for path in repositories if path.endswith("/.git")}
            self._made |= {
                inode
                for path, inode in new.items()
                if not is_covered(path, aside)
                and (not is_covered(path, by_git) or is_covered(path, trees))
            }

    def view(self, workspace: str, swept: Swept) -> SandboxView:
        """Return the view for one command.

        Args:
            workspace: The working directory, from `workspace`.
            swept: The protected paths, from `look`.
        """
        hidden = {*map(_real, (*_HIDDEN, *_HIDDEN_FILES)), self.home, *self._state, *self._asked}
        readable = [*self._readable]
        if self._options.network:
            # The path is often a link into /run.
            readable.append(_real("/etc/resolv.conf"))
        writable = [workspace, *self.writable]
        secrets = {f"{self.home}/{name}" for name in _SECRETS_OF_HOME}

        def inside(paths: Iterable[str]) -> list[str]:
            """Return the paths that are below a writable one, and not behind a link."""
            return sorted(
                path
                for path in set(paths)
                if path not in writable
                and any(is_below(path, folder) for folder in writable)
                and real_path(path) == path
            )

        hidden_inside = [
            path for path in inside({*secrets, *self._asked, *self._state}) if os.path.lexists(path)
        ]
        # A path that the plan hides stays hidden in a folder that the plan makes readable.
        named = sorted({*self._asked, *self._state} - {*hidden_inside, *writable})
        hidden_inside += [
            path for path in named if inside_another(path, readable) and os.path.lexists(path)
        ]

        def visible(paths: Iterable[str]) -> list[str]:
            return [
                path
                for path in inside(paths)
                if not any(is_below(path, hidden_path) for hidden_path in hidden_inside)
            ]

        own = {*map(_real, own_folders()), *self._helpers, *own_places()}
        own_inside = visible(path for path in own if os.path.lexists(path))
        of_home = {f"{self.home}/{name}" for name in _OF_HOME}
        listed = visible({*swept.places, *(path for path in of_home if os.path.lexists(path))})
        listed = [
            path for path in listed if not any(is_below(path, folder) for folder in own_inside)
        ]
        with self._lock:
            first = self._first or set()
            made_paths = {path for path, inode in swept.places.items() if inode in self._made}
        listed = topmost(path for path in listed if not is_covered(path, made_paths))
        listed.sort(key=lambda path: (swept.places.get(path) not in first, path.count("/"), path))
        protected = [path for path in own_inside if not inside_another(path, own_inside)]
        mounted = listed[:_MAX_MOUNTS]
        missing = {_first_missing(path) for path in visible({*own, *of_home} - set(protected))}
        missing = {
            path
            for path in missing
            if inside_another(path, writable)
            and (not os.path.lexists(path) or is_placeholder(path))
        }
        nested = [folder for folder in writable if inside_another(folder, writable)]
        # The agent's own files must not be moved. A repository may be moved, but stays read-only.
        covered = (*hidden_inside, *protected, *missing, *nested)
        pinned = {parent for path in covered for parent in _parents_below(path, writable)}
        sockets = foreign_sockets([*swept.sockets, *mounted_sockets()])
        return SandboxView(
            hidden=tuple(
                sorted(path for path in hidden if os.path.lexists(path) and path not in writable)
            ),
            readable=tuple(
                path
                for path in dict.fromkeys(readable)
                if os.access(path, os.F_OK)
                and any(is_below(path, other) and path != other for other in hidden)
                and not any(is_below(path, folder) for folder in writable)
            ),
            writable=tuple(sorted(writable)),
            pinned=tuple(sorted(pinned - set(writable))),
            protected=(*protected, *mounted),
            missing=tuple(
                sorted(path for path in missing if not inside_another(path, [*protected, *mounted]))
            ),
            hidden_inside=tuple(hidden_inside),
            sockets=tuple(sockets),
            repositories=tuple(path for path in mounted if path in swept.repositories),
        )


def inside_another(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is below one of some folders and isn't that folder itself."""
    return any(is_below(path, folder) and path != folder for folder in folders)


def topmost(paths: Iterable[str]) -> list[str]:
    """Return the paths that aren't below another of these paths."""
    tops = list[str]()
    # If a slash sorts before all other characters, the content of a folder follows the folder.
    for path in sorted(set(paths), key=lambda path: path.replace("/", "\0")):
        if not tops or not is_below(path, tops[-1]):
            tops.append(path)
    return tops


def is_covered(path: str, folders: Container[str]) -> bool:
    """Return whether a path is one of the given paths, or below one of them."""
    while path and path not in folders:
        path = path.rpartition("/")[0]
    return bool(path)


def _first_missing(path: str) -> str:
    while not os.path.lexists(parent := os.path.dirname(path)):  # noqa: PTH120 — text in, text out
        path = parent
    return path


def _parents_below(path: str, writable: Iterable[str]) -> Iterator[str]:
    """Yield the folders between a path and the writable folder that it is in."""
    roots = list(writable)
    parent = os.path.dirname(path)  # noqa: PTH120
    while inside_another(parent, roots):
        yield parent
        parent = os.path.dirname(parent)  # noqa: PTH120


def _resolved(path: str, roots: Iterable[str], name: str) -> str:
    expanded = str(Path(path).expanduser())
    for link in links_on(expanded):
        for root in roots:
            if is_below(link, root) and link != root:
                raise ValueError(
                    f"{name}: {path} is reached by the symbolic link {link}, which commands may "
                    f"change because {root} is writable; name the folder itself"
                )
    return os.path.realpath(expanded)


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────
# Neither a read-only mount nor a separate network prevents connections to a socket in the file
# system.


def foreign_sockets(seen: Iterable[str]) -> list[str]:
    """Return the sockets that have to be covered.

    The kernel lists the names that sockets of this network namespace were bound to. A socket that
    was renamed afterwards is looked for in the folder of its former name.

    Args:
        seen: Sockets that a sweep of the writable folders has found.
    """
    try:
        with Path("/proc/net/unix").open(encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(maxsplit=7) for line in file]
    except OSError:
        fields = []
    names = {
        field[7].rstrip("\n")
        for field in fields[1:]
        if len(field) == 8 and not field[7].startswith("@")
    }
    sockets = {name for name in names if name.startswith("/") and _is_socket(name)}
    others = [name for name in names - sockets if name.startswith("/")]
    for folder in {os.path.dirname(name) for name in others}:  # noqa: PTH120 — text in, text out
        sockets |= set(_sockets_in(folder))
    sockets |= {path for path in seen if _is_socket(path)}
    return sorted({real_path(path) for path in sockets})


def mounted_sockets() -> Iterator[str]:
    """Yield sockets that are mounted, such as a container engine's, or that are in mounted folders.

    Their servers may be in another network namespace, so the kernel's list doesn't include them.
    """
    try:
        with Path("/proc/self/mountinfo").open("rb") as file:
            lines = [line.split(b" ") for line in file]
    except OSError:
        return
    count = 0
    for fields in lines:
        point = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
        if point == "/" or any(is_below(point, place) for place in ("/proc", "/sys", "/dev")):
            continue
        if _is_socket(point):
            yield point
            continue
        pending = [(point, 0)]
        for folder, depth in pending:  # grows
            for entry in _entries(folder):
                count += 1
                if _is_entry_a_socket(entry):
                    yield entry.path
                elif (
                    depth < _MAX_DEPTH
                    and count < _MAX_ENTRIES
                    and entry.is_dir(follow_symlinks=False)
                ):
                    pending.append((entry.path, depth + 1))


def _sockets_in(folder: str) -> Iterator[str]:
    return (entry.path for entry in _entries(folder) if _is_entry_a_socket(entry))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_entry_a_socket(entry: os.DirEntry[str]) -> bool:
    if (
        entry.is_file(follow_symlinks=False)
        or entry.is_dir(follow_symlinks=False)
        or entry.is_symlink()
    ):
        # The listing includes the kind, so no further system call is needed.
        return False
    return _is_socket(entry.path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 — there may be thousands
    except OSError:
        # The socket was removed, or it is in a folder that commands can't read either.
        return False


def _real(path: str) -> str:
    return os.path.realpath(Path(path).expanduser())
