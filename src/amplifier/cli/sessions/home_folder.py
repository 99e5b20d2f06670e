"""The state folder of the command line: one for all sessions, whatever the working directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from amplifier.cli.core.exit_codes import CommandError
from amplifier.errors import MissingExtraError

__all__ = [
    "HOME_VARIABLE",
    "config_folder",
    "find_home",
    "history_file",
    "require_writable",
    "running_folder",
    "sessions_folder",
]

HOME_VARIABLE = "AMPLIFIER_HOME"


def config_folder() -> Path:
    """The folder of the user's own files: the one named by AMPLIFIER_HOME, else the configuration folder of this system."""
    return find_home("user_config_path")


def find_home(kind: str = "user_state_path") -> Path:
    """The folder named by AMPLIFIER_HOME, else the user's state folder of this system; it is not created."""
    configured = os.environ.get(HOME_VARIABLE, "").strip()
    if configured:
        return Path(configured).expanduser().absolute()
    try:
        import platformdirs  # noqa: PLC0415  # belongs to an extra; not needed if the variable is set
    except ModuleNotFoundError as error:
        raise MissingExtraError("finding the state folder", extra="cli", missing="platformdirs") from error
    folder: Path = getattr(platformdirs, kind)("amplifier", appauthor=False)
    return folder


def sessions_folder(home: Path) -> Path:
    """Has a folder for each session, named after its id."""
    return home / "sessions"


def running_folder(home: Path) -> Path:
    """Has the files of running commands, see `running_commands`."""
    return home / "running"


def history_file(home: Path) -> Path:
    """Has the messages entered in chats."""
    return home / "history"


def require_writable(sessions: Path) -> None:
    """Check that sessions can be stored there, without leaving anything behind.

    Raises:
        CommandError: They cannot; the message names the folder and the variable that chooses it.
    """
    nearest = next(folder for folder in (sessions, *sessions.parents) if folder.exists())
    if not nearest.is_dir():
        problem = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem = f"{nearest} cannot be written to"
    elif nearest == sessions or (refusal := _refusal_to_create(nearest)) is None:
        return
    else:
        problem = f"nothing can be created in {nearest} ({refusal})"
    raise CommandError(
        f"sessions cannot be kept in {sessions}: {problem}; set {HOME_VARIABLE} to a folder that you can write to"
    )


def _refusal_to_create(folder: Path) -> str | None:
    """Why no folder can be made there; None if one can. Permissions do not show it: root seems to have all of them in /proc."""
    try:
        Path(tempfile.mkdtemp(prefix=".amplifier-", dir=folder)).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None
