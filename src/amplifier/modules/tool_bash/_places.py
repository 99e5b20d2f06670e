"""Which parts of the file system a command in a sandbox sees and may change; asks the file system, starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from .._shared.session_files import default_sessions_directory
from ._options import BashOptions

# Where other users, other programs and services keep what is theirs.
_HIDDEN = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/var/lib/docker", "/boot", "/lost+found")
_HIDDEN_FILES = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/ssh")
# Programs that people install into their home folder; no credentials among them.
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
        "go/bin",
    ),
    *(".local/bin", ".local/lib", ".local/share/uv", ".local/share/mise", ".local/share/pnpm", ".linuxbrew"),
    *("miniconda3", "anaconda3", "miniforge3"),
)
# Inside of a working directory that is a home folder.
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
        ".password-store",
    ),
    *(
        ".config",
        ".local/share/keyrings",
        ".local/state",
        ".mozilla",
        ".npmrc",
        ".pypirc",
        ".bash_history",
        ".zsh_history",
    ),
)


@attrs.frozen(kw_only=True)
class Places:
    """What of the file system a command gets to see; real paths.

    Attributes:
        hidden: Not seen, but for what is readable or writable below.
        readable: Seen although it is below something hidden.
        writable: Can be changed.
        hidden_inside: Not seen although it is below something writable.
    """

    hidden: tuple[str, ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    hidden_inside: tuple[str, ...]


def extra_writable(options: BashOptions) -> list[str]:
    """The folders of the plan that commands may change, as real paths."""
    return [_real(path) for path in options.writable]


def find_places(options: BashOptions, workspace: str, temporary: str | None) -> Places:
    """The places for one command.

    Args:
        options: With the paths of the plan.
        workspace: The working directory, a real path.
        temporary: A folder for temporary files.
    """
    home = _real("~")
    state = {
        _real(str(default_sessions_directory().parent)),
        *map(_real, filter(None, [os.environ.get("AMPLIFIER_HOME")])),
    }
    asked = {_real(path) for path in options.hidden}
    hidden = {*map(_real, (*_HIDDEN, *_HIDDEN_FILES)), home, *state, *asked}
    writable = [workspace, *extra_writable(options), *([] if temporary is None else [temporary])]
    secrets = {f"{home}/{name}" for name in _SECRETS_OF_HOME}
    inside = [
        path
        for path in sorted({*secrets, *asked, *state})
        if os.path.lexists(path) and any(_is_below(path, folder) for folder in writable)
    ]
    readable = [_real(path) for path in (*options.readable, *(f"{home}/{name}" for name in _TOOLS_OF_HOME))]
    readable += [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    if options.network:
        readable.append(_real("/etc/resolv.conf"))  # often a link into /run
    return Places(
        hidden=tuple(sorted(path for path in hidden if os.path.lexists(path) and path not in writable)),
        readable=tuple(
            path
            for path in dict.fromkeys(readable)
            if Path(path).exists() and any(_is_below(path, other) and path != other for other in hidden)
        ),
        writable=tuple(writable),
        hidden_inside=tuple(path for path in inside if path not in writable),
    )


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
        if any(_is_below(other, path) for other in hidden):
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


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
