"""The directories that belong to a session."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from amplifier.contracts import Coordinator
from amplifier.errors import PlanError

# Repeats the kernel's rule for session ids: the id becomes part of a path, and a coordinator need not be the kernel's.
_SESSION_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")


def default_sessions_directory() -> Path:
    """The user's directory of sessions by the XDG base directory rules, which ignore a relative ``XDG_STATE_HOME``."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    return base / "amplifier" / "sessions"


def working_directory(coordinator: Coordinator, default: Path) -> Path:
    """The session's working directory, or `default`; an application may set or change it at any time."""
    value = coordinator.get_capability("session.working_dir")
    return default / value if isinstance(value, str | Path) else default


def check_session_id(session_id: Any) -> None:
    """Refuse a session id that cannot be the name of a directory.

    Raises:
        PlanError: It is not a session id.
    """
    if not isinstance(session_id, str) or _SESSION_ID.fullmatch(session_id) is None:
        rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
        raise PlanError([("session_id", f"{rule}; got {ascii(session_id)[:80]}")])
