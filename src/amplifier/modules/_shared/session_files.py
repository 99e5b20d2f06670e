"""The directories that belong to a session."""

from __future__ import annotations

import os
from pathlib import Path

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
