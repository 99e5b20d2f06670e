"""The state folder of the command line: one for all sessions, whatever the working directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from amplifier.cli.core.exit_codes import CommandError
from amplifier.errors import MissingExtraError

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


def running_folder() -> Path:
    """Has the files of running commands, see `running_commands`."""
    return find_home() / "running"


def require_writable(sessions: Path) -> None:
    """Check that sessions can be stored there, without leaving anything behind.

    Raises:
        CommandError: They cannot; the message names the folder and the variable that chooses it.
    """
    nearest = next(folder for folder in (sessions, *sessions.parents) if folder.exists())
    try:  # permissions do not show it: root seems to have all of them in /proc
        Path(tempfile.mkdtemp(prefix=".amplifier-", dir=nearest)).rmdir()
    except OSError as error:
        refused = f"nothing can be created in {nearest} ({error.strerror or error})"
        raise CommandError(
            f"sessions cannot be kept in {sessions}: {refused if nearest.is_dir() else f'{nearest} is not a folder'}; "
            f"set {HOME_VARIABLE} to a folder that you can write to"
        ) from error
