"""The directories that belong to a session, and files for their owner alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from amplifier._regular_file import make_folders
from amplifier.contracts import Coordinator


def default_sessions_directory() -> Path:
    """The user's directory of sessions by the XDG base directory rules, which ignore a relative ``XDG_STATE_HOME``."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    return base / "amplifier" / "sessions"


def working_directory(coordinator: Coordinator, default: Path) -> Path:
    """The session's working directory, or `default`; an application may set or change it at any time."""
    value = coordinator.get_capability("session.working_dir")
    return default / value if isinstance(value, str | Path) else default


def replace_private_file(path: Path, text: str) -> None:
    """Replace a file as a whole; only its owner may read it. Readers see the old content or all of the new one. Blocks.

    Raises:
        OSError: The system refuses; an old file is unchanged.
    """
    make_folders(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
