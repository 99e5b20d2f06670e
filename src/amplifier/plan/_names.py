"""The grammar of ids, and how messages show what was found."""

from __future__ import annotations

import re
import uuid
from typing import Final, TypeGuard

from .._reading import show
from ..errors import PlanError

MODULE_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# No leading dot: such a name is hidden on most systems, and "." and ".." are directories.
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")
_FIRST_WORD_TO_TYPE: Final = {
    "orchestrator": "orchestrator",
    "loop": "orchestrator",
    "provider": "provider",
    "tool": "tool",
    "tools": "tool",
    "hook": "hook",
    "hooks": "hook",
    "context": "context",
    "resolver": "resolver",
}
MODULE_ID_RULE = (
    "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', at most 64 in all"
)


def is_module_id(text: object) -> TypeGuard[str]:
    """Whether this can be the id of a module: it becomes part of paths and package names, so the grammar is narrow."""
    return type(text) is str and MODULE_ID.fullmatch(text) is not None


def type_from_id(module_id: str) -> str | None:
    """The kind of module that an id's first word names, or None.

    Only the first word counts: ``hooks-tool-x`` is a hook about tools. When it names no kind there is no guess; the
    section of the mount plan that lists the module decides.
    """
    return _FIRST_WORD_TO_TYPE.get(re.split("[-_]", module_id, maxsplit=1)[0])


def validate_session_id(text: object) -> str:
    """Return the session id, or raise a `PlanError`: it names files and appears in logs, so it can be no path."""
    if type(text) is str and _SESSION_ID.fullmatch(text):
        return text
    rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
    raise PlanError([("", f"{rule}, got {show(text)}")], subject="invalid session id")


def new_session_id() -> str:
    """A random UUID as text."""
    return str(uuid.uuid4())
