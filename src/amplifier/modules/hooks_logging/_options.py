"""What the plan may say about the log, and where its file is."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import PlanError

from .._tool_base import count, flag, one_of, read_config, texts

_MODULE = "hooks-logging"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# A piece of text per token: hundreds per answer, and all of it again in content_block:end.
_PIECES = ("*:delta", "llm:stream_*delta")
_PLACES = frozenset({"session_id", "project"})
# The kernel's grammar of session ids, held here again: the id becomes a path, and not every host is our kernel.
_SESSION_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")
_LONGEST_NAME = 200


@attrs.frozen(kw_only=True)
class LogOptions:
    """Where a session's events go, and which.

    Attributes:
        path: The file.
        level: Events below it are left out; see `amplifier.modules.hooks_logging._record.level_of`.
        include_events: Patterns of event names; only those that match one are written.
        exclude_events: Patterns of event names that are not.
        additional_events: Names to listen to beside the catalogue's and those other modules announce.
        auto_discover: Whether to listen to the events other modules announce.
        priority: Where the handlers stand; after those that change payloads.
        strip_raw: Leave out the payload's ``raw``.
        max_field_chars: The longest text within a line.
        max_line_bytes: The longest line.
    """

    path: Path
    level: str = "DEBUG"
    include_events: tuple[str, ...] = ("*",)
    exclude_events: tuple[str, ...] = _PIECES
    additional_events: tuple[str, ...] = ()
    auto_discover: bool = True
    priority: int = 90
    strip_raw: bool = False
    max_field_chars: int = 32_768
    max_line_bytes: int = 131_072

    def wants(self, event: str) -> bool:
        """Whether events of that name are written."""
        return any(fnmatch.fnmatchcase(event, pattern) for pattern in self.include_events) and not any(
            fnmatch.fnmatchcase(event, pattern) for pattern in self.exclude_events
        )


def _template(value: Any) -> str | None:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in os.fspath(value):
        return f"expected the name of a file, got {value!r}"
    try:
        places = [part[1:] for part in Formatter().parse(str(value)) if part[1] is not None]
    except ValueError as error:
        return f"{error}; write {{{{ and }}}} for braces that are meant as such"
    # Nothing but the bare names: what is filled in is checked by name.
    wrong = [name for name, spec, conversion in places if name not in _PLACES or spec or conversion]
    return f"expected only {{session_id}} and {{project}} in braces, got {wrong[0]!r} in {value!r}" if wrong else None


def _level(value: Any) -> str | None:
    return one_of(LEVELS)(value.upper() if isinstance(value, str) else value)


def _priority(value: Any) -> str | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return None if is_number else f"expected a whole number, got {value!r}"


_CHECKS = {
    "path": _template,
    "session_log_template": _template,
    "level": _level,
    "include_events": texts(),
    "enabled_events": texts(),
    "exclude_events": texts(),
    "additional_events": texts(),
    "auto_discover": flag,
    "priority": _priority,
    "strip_raw": flag,
    "max_field_chars": count(64),
    "max_line_bytes": count(1024),
}

# Names that the published module and the hook contract use.
_SYNONYMS = {"session_log_template": "path", "enabled_events": "include_events"}


def read_log_options(coordinator: Coordinator, config: Mapping[str, Any] | None) -> LogOptions:
    """Read the config of a session's log.

    Raises:
        PlanError: A key or value is wrong, or the session id cannot name a file; all problems at once.
    """
    given = read_config(_MODULE, config, _CHECKS)
    twice = [
        (f"$.{other}", f"says the same as $.{key}; expected one of the two")
        for other, key in _SYNONYMS.items()
        if other in given and key in given
    ]
    if twice:
        raise PlanError(twice, subject=f"invalid config of {_MODULE}")
    given = {_SYNONYMS.get(key, key): value for key, value in given.items()}
    template = given.pop("path", None)
    for key in ("include_events", "exclude_events", "additional_events"):
        if key in given:
            given[key] = tuple(given[key])
    if "level" in given:
        given["level"] = given["level"].upper()
    return LogOptions(path=_path(coordinator, template), **given)


def _path(coordinator: Coordinator, template: str | os.PathLike[str] | None) -> Path:
    session_id: Any = coordinator.session_id
    text = str(_default_root() / "{session_id}" / "events.jsonl" if template is None else os.fspath(template))
    if "{session_id}" in text and (not isinstance(session_id, str) or _SESSION_ID.fullmatch(session_id) is None):
        rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
        raise PlanError(
            [("session_id", f"{rule}; got {ascii(session_id)[:80]}")], subject=f"invalid config of {_MODULE}"
        )
    project = _project(coordinator) if "{project}" in text else ""
    return Path(text.format(session_id=session_id, project=project)).expanduser().absolute()


def _project(coordinator: Coordinator) -> str:
    """The working directory as one name, as the published module writes it: ``-srv-code-site``."""
    folder = coordinator.get_capability("session.working_dir") or Path.cwd()
    slug = re.sub(r"[^\w.-]", "-", str(Path(str(folder)).expanduser().absolute()))
    return slug if len(slug) <= _LONGEST_NAME else f"-{slug[-_LONGEST_NAME:].lstrip('-')}"


def _default_root() -> Path:
    """Beside the conversations of context-persistent, by the XDG base directory rules."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    # The user's own path may contain braces, which are no places to fill in.
    return Path(str(base / "amplifier" / "sessions").replace("{", "{{").replace("}", "}}"))
