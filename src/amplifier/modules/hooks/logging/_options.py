"""The configuration of hooks-logging, and the path of the log file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import PlanError
from amplifier.store import check_session_id

from ..._shared.configuration import (
    choice,
    file_name,
    flag,
    option,
    optional,
    read_options,
    texts,
    whole_number,
)
from ..._shared.session import default_sessions_directory

MODULE = "hooks-logging"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# One event per token: hundreds per response, and content_block:end repeats all of the text.
_DELTAS = ("*:delta", "llm:stream_*delta")
_PLACEHOLDERS = frozenset({"session_id", "project"})
_LONGEST_NAME = 200


def _read_template(value: Any) -> Path:
    try:
        fields = [part[1:] for part in Formatter().parse(str(value)) if part[1] is not None]
    except ValueError as error:
        raise PlanError([("$", f"{error}; write {{{{ and }}}} for literal braces")]) from error
    # Only the bare names: attributes and conversions could put unchecked text into the path.
    wrong = [name for name, spec, conversion in fields if name not in _PLACEHOLDERS or spec or conversion]
    if wrong:
        problem = f"expected only {{session_id}} and {{project}} in braces, got {wrong[0]!r} in {value!r}"
        raise PlanError([("$", problem)])
    return Path(value)


_TEMPLATE = attrs.evolve(file_name, convert=_read_template)
_LEVEL = attrs.evolve(
    choice(*LEVELS), accepts=lambda value: isinstance(value, str) and value.upper() in LEVELS, convert=str.upper
)


@attrs.frozen(kw_only=True)
class LogOptions:
    """Where a session's events go, and which.

    Attributes:
        path: The file.
        level: Events below it are not written; see `amplifier.modules.hooks.logging._log_record.level_of`.
        include_events: Patterns of event names; only events that match one are written.
        exclude_events: Patterns of event names that are not written.
        additional_events: Names to listen to besides the catalogue's and those other modules announce.
        auto_discover: Whether to listen to the events other modules announce.
        priority: Of the handlers: after those that change payloads.
        strip_raw: Whether to omit the payload's ``raw``.
        max_field_chars: The longest text within a line.
        max_line_bytes: The longest line.
        max_bytes: The size at which the file is renamed and a new one begun; None for no limit.
        keep: How many renamed files there are at most.
    """

    path: Path = option(_TEMPLATE, aliases=("session_log_template",))
    level: str = option(_LEVEL, default="DEBUG")
    include_events: tuple[str, ...] = option(texts(), default=("*",), aliases=("enabled_events",))
    exclude_events: tuple[str, ...] = option(texts(), default=_DELTAS)
    additional_events: tuple[str, ...] = option(texts(), default=())
    auto_discover: bool = option(flag, default=True)
    priority: int = option(whole_number(), default=90)
    strip_raw: bool = option(flag, default=False)
    max_field_chars: int = option(whole_number(64), default=32_768)
    max_line_bytes: int = option(whole_number(1024), default=131_072)
    max_bytes: int | None = option(optional(whole_number(1024), null="for no limit"), default=None)
    keep: int = option(whole_number(1), default=5)

    def wants(self, event: str) -> bool:
        """Whether events of that name are written."""
        return any(fnmatch.fnmatchcase(event, pattern) for pattern in self.include_events) and not any(
            fnmatch.fnmatchcase(event, pattern) for pattern in self.exclude_events
        )


def read_log_options(coordinator: Coordinator, config: Mapping[str, Any] | None) -> LogOptions:
    """Read the configuration of a session's log and fill in the path.

    Raises:
        PlanError: The configuration is wrong, or the session id cannot be part of a path.
    """
    # The user's state directory may contain braces, which are not placeholders.
    sessions = str(default_sessions_directory()).replace("{", "{{").replace("}", "}}")
    options = read_options(LogOptions, MODULE, config, path=Path(sessions, "{session_id}", "events.jsonl"))
    template = str(options.path)
    if "{session_id}" in template:
        try:
            check_session_id(coordinator.session_id)
        except PlanError as error:
            raise PlanError(error.problems, subject=f"invalid config of {MODULE}") from None
    project = _project(coordinator) if "{project}" in template else ""
    path = Path(template.format(session_id=coordinator.session_id, project=project))
    return attrs.evolve(options, path=path.expanduser().absolute())


def _project(coordinator: Coordinator) -> str:
    """The working directory as one name, as the published module writes it: ``-srv-code-site``."""
    folder = coordinator.get_capability("session.working_dir") or Path.cwd()
    slug = re.sub(r"[^\w.-]", "-", str(Path(str(folder)).expanduser().absolute()))
    return slug if len(slug) <= _LONGEST_NAME else f"-{slug[-_LONGEST_NAME:].lstrip('-')}"
