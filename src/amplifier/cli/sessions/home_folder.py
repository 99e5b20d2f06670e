"""Where the command line keeps what it must remember: one folder for all sessions, wherever it is started from.

Above: the session store and `doctor`. Below: platformdirs.
"""

from __future__ import annotations

import os
from pathlib import Path

from amplifier.cli.core.exit_codes import CommandError
from amplifier.errors import MissingExtraError

__all__ = ["HOME_VARIABLE", "find_home", "history_file", "require_writable", "running_folder", "sessions_folder"]

HOME_VARIABLE = "AMPLIFIER_HOME"


def find_home() -> Path:
    """The folder named by AMPLIFIER_HOME, else the user's state folder of this system; not made here."""
    configured = os.environ.get(HOME_VARIABLE, "").strip()
    if configured:
        return Path(configured).expanduser().absolute()
    try:
        import platformdirs  # noqa: PLC0415  # belongs to an extra; whoever sets the variable does without
    except ModuleNotFoundError as error:
        raise MissingExtraError("finding the state folder", extra="cli", missing="platformdirs") from error
    return platformdirs.user_state_path("amplifier", appauthor=False)


def sessions_folder(home: Path) -> Path:
    """The folder of all sessions; each has a folder of its own in it, named after its id."""
    return home / "sessions"


def running_folder(home: Path) -> Path:
    """The folder in which running commands can be found and asked what they are doing."""
    return home / "running"


def history_file(home: Path) -> Path:
    """The file with the messages that were entered in chats."""
    return home / "history"


def require_writable(sessions: Path) -> None:
    """Make sure that sessions can be kept there, without making anything.

    Raises:
        CommandError: They cannot; the message names the folder and the variable that chooses it.
    """
    nearest = next(folder for folder in (sessions, *sessions.parents) if folder.exists())
    if not nearest.is_dir():
        problem = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem = f"{nearest} cannot be written to"
    else:
        return
    raise CommandError(
        f"sessions cannot be kept in {sessions}: {problem}; set {HOME_VARIABLE} to a folder that you can write to"
    )
