"""What the plan may say about a persistent context, and where its folder is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.errors import PlanError, Problem

from .._chat_history import ContextOptions, option_problems, read_options

ResumePolicy: TypeAlias = Literal["keep_file", "replace"]

_POLICIES = ("keep_file", "replace")
# The kernel's grammar of session ids, held here again: the id becomes a path, and not every host is our kernel.
_SESSION_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")


@attrs.frozen(kw_only=True)
class PersistentOptions:
    """Where the conversation is kept and how much of it a request may hold.

    Attributes:
        folder: The conversation's own folder, made if need be.
        session_id: Whose conversation it is.
        resume_policy: What `set_messages` does after the conversation was loaded from its file: ``"keep_file"`` ignores
            it, because the file is the fuller record; ``"replace"`` obeys.
        context: What it has in common with context-simple.
    """

    folder: Path
    session_id: str
    resume_policy: ResumePolicy = "keep_file"
    context: ContextOptions = attrs.field(factory=ContextOptions)


def read_persistent_options(session_id: Any, config: Mapping[str, Any] | None) -> PersistentOptions:
    """Read the config of a session's context; keys it does not know are left to others.

    Raises:
        PlanError: A value is wrong, or the session id cannot name a folder; all problems at once.
    """
    given = config or {}
    problems: list[Problem] = []
    if not isinstance(session_id, str) or _SESSION_ID.fullmatch(session_id) is None:
        rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
        problems.append(("session_id", f"{rule}; got {ascii(session_id)[:80]}"))
    path = given.get("path")
    if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path) and "\0" not in str(path)):
        problems.append(("$.path", f"expected the name of a folder, got {path!r}"))
    policy = given.get("resume_policy", "keep_file")
    if policy not in _POLICIES:
        problems.append(("$.resume_policy", f"expected 'keep_file' or 'replace', got {policy!r}"))
    problems += option_problems(given)
    if problems:
        raise PlanError(problems, subject="invalid config of context-persistent")
    return PersistentOptions(
        folder=(_default_root() if path is None else Path(path).expanduser().absolute()) / session_id,
        session_id=session_id,
        resume_policy=policy,
        context=read_options("context-persistent", given),
    )


def _default_root() -> Path:
    """Where conversations of this user are kept, by the XDG base directory rules: a relative folder there is ignored."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    return base / "amplifier" / "sessions"
