"""Where the command line keeps what it must remember: one folder for all sessions, wherever it is started from.

Above: the session store and `doctor`. Below: platformdirs.
"""

from __future__ import annotations

import os
from pathlib import Path

from amplifier.errors import MissingExtraError

__all__ = ["HOME_VARIABLE", "find_home", "sessions_below"]

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


def sessions_below(home: Path) -> Path:
    """The folder of all sessions; each has a folder of its own in it, named after its id."""
    return home / "sessions"
