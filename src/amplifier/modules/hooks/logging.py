"""hooks-logging: writes each event of a session as one line of JSON, bounded and without secrets.

The format is the same as in the published module.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any

import attrs
import orjson

from amplifier._internal.json import Frame, rebuild, redact_secrets, redact_text, text_size
from amplifier._internal.regular_files import make_folders
from amplifier.contracts import Coordinator, Hooks
from amplifier.errors import PlanError
from amplifier.events import (
    ALL_EVENTS,
    APPROVAL_DENIED,
    CLEANUP_FAILED,
    COMMON_KEYS,
    HOOK_FAILED,
    HOOK_TIMEOUT,
    MODULE_CRASHED,
    MODULE_LOAD_FAILED,
    MODULE_ON_SESSION_READY_FAILED,
    MODULE_UNRESPONSIVE,
    OUR_EVENTS,
    POLICY_VIOLATION,
    PROVIDER_REQUEST,
    PROVIDER_RETRY,
    PROVIDER_THROTTLE,
    PROVIDER_TOOL_SEQUENCE_REPAIRED,
)
from amplifier.models import HookResult, ToolResult
from amplifier.store import check_session_id

from .._shared.configuration import (
    choice,
    file_name,
    flag,
    option,
    optional,
    read_options,
    texts,
    whole_number,
)
from .._shared.failure import ToolFailure
from .._shared.session import default_sessions_directory
from .._shared.worker_threads import Stop, Workers

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LEVELS",
    "MODULE",
    "TOP_LEVEL",
    "EventFile",
    "EventLog",
    "LogOptions",
    "broken_line",
    "level_of",
    "mount",
    "on_session_ready",
    "read_log_options",
    "write_line",
]

__amplifier_module_type__ = "hook"

MODULE = "hooks-logging"
_logger = logging.getLogger("amplifier.modules.hooks-logging")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# There is one of these events per token, and content_block:end repeats the whole text.
_DELTAS = ("*:delta", "llm:stream_*delta")
_PLACEHOLDERS = frozenset({"session_id", "project"})
_MAX_NAME_CHARS = 200


def _read_template(value: str) -> Path:
    try:
        fields = [part[1:] for part in Formatter().parse(str(value)) if part[1] is not None]
    except ValueError as error:
        raise PlanError([("$", f"{error}; write {{{{ and }}}} for literal braces")]) from error
    # Allow only bare names, because attributes and conversions could put unchecked text into the
    # path.
    wrong = [
        name for name, spec, conversion in fields if name not in _PLACEHOLDERS or spec or conversion
    ]
    if wrong:
        problem = (
            f"expected only {{session_id}} and {{project}} in braces, got {wrong[0]!r} in {value!r}"
        )
        raise PlanError([("$", problem)])
    return Path(value)


_TEMPLATE = attrs.evolve(file_name, convert=_read_template)
_LEVEL = attrs.evolve(
    choice(*LEVELS),
    accepts=lambda value: isinstance(value, str) and value.upper() in LEVELS,
    convert=str.upper,
)


@attrs.frozen(kw_only=True)
class LogOptions:
    """The configuration of hooks-logging.

    Attributes:
        path: The file.
        level: The lowest level to write. See `level_of`.
        include_events: Patterns of event names. Only events that match one are written.
        exclude_events: Patterns of event names. Events that match one aren't written.
        additional_events: Names of events in addition to those that are in the catalogue or
            announced by modules.
        auto_discover: Listen to the events that other modules announce.
        priority: The priority of the handlers, after those that change payloads.
        strip_raw: Leave out the payload's ``raw``.
        max_field_chars: The maximum length of a text within a line.
        max_line_bytes: The maximum length of a line.
        max_bytes: The size at which the file is renamed and a new one starts. None for no limit.
        keep: The maximum number of renamed files.
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
        """Return whether events of that name are written."""
        return any(
            fnmatch.fnmatchcase(event, pattern) for pattern in self.include_events
        ) and not any(fnmatch.fnmatchcase(event, pattern) for pattern in self.exclude_events)


def read_log_options(coordinator: Coordinator, config: Mapping[str, object] | None) -> LogOptions:
    """Read the configuration of a session's log and fill in the path.

    Raises:
        PlanError: The configuration is wrong, or the session id cannot be part of a path.
    """
    # The user's state directory may contain braces, which aren't placeholders.
    sessions = str(default_sessions_directory()).replace("{", "{{").replace("}", "}}")
    options = read_options(
        LogOptions, MODULE, config, path=Path(sessions, "{session_id}", "events.jsonl")
    )
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
    """Return the working directory as one name, like ``-srv-code-site`` in the published module."""
    folder = coordinator.get_capability("session.working_dir") or Path.cwd()
    slug = re.sub(r"[^\w.-]", "-", str(Path(str(folder)).expanduser().absolute()))
    return slug if len(slug) <= _MAX_NAME_CHARS else f"-{slug[-_MAX_NAME_CHARS:].lstrip('-')}"


# ── lines ────────────────────────────────────────────────────────────────────────────────────────

# The id of a call is excluded, because a model writes it.
_KERNEL_KEYS = tuple(key for key in COMMON_KEYS if key != "parent_call_id")
_SCHEMA = {"name": "amplifier.log", "ver": "1.0.0"}
TOP_LEVEL = (
    "session_id",
    "status",
    "duration_ms",
    "error",
    "module",
    "component",
    "request_id",
    "span_id",
    "parent_span_id",
    "redaction",
)
"""Members of a payload that are written next to the event instead of under ``data``."""
_FAILURES = frozenset(
    {MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED, MODULE_CRASHED, CLEANUP_FAILED}
)
_FAILURES |= {HOOK_FAILED, HOOK_TIMEOUT}
_WARNINGS = frozenset(
    {PROVIDER_RETRY, PROVIDER_THROTTLE, PROVIDER_TOOL_SEQUENCE_REPAIRED, APPROVAL_DENIED}
)
_WARNINGS |= {POLICY_VIOLATION, MODULE_UNRESPONSIVE}

# The number of characters beyond a text's limit that are redacted as well, so that a secret at the
# limit is complete.
_MARGIN = 1024
# The limit for a text is divided by this number if the whole line is too long.
_TIGHTER = 16
_MAX_SHORT_MEMBERS = 20
_MAX_SHORT_CHARS = 100
# The depth at which the error of a result contains its message.
_MAX_SHORT_DEPTH = 2
# The short members of 20 objects fit into a line even if every character is escaped.
_SHARE = 250
_MAX_NUMBER_CHARS = 24
_MAX_DEPTH = 1000


def level_of(event: str, data: Mapping[str, object]) -> str:
    """Return the level in the payload's ``lvl``, or else that of the event."""
    level = data.get("lvl", data.get("level"))
    if isinstance(level, str) and level.upper() in LEVELS:
        return level.upper()
    if event in _FAILURES or "error" in event or data.get("error") or data.get("status") == "error":
        return "ERROR"
    return "WARNING" if event in _WARNINGS else "INFO"


def write_line(event: str, level: str, data: dict[str, Any], options: LogOptions) -> bytes:
    """Return the line of one event with its newline. ``data`` isn't changed."""
    # The kernel's own fields contain no secrets. Redacting them would account for a third of the
    # cost of a small event.
    common: dict[str, Any] = {key: data[key] for key in _KERNEL_KEYS if type(data.get(key)) is str}
    rest = {
        key: value
        for key, value in data.items()
        if key not in common and not (key == "raw" and options.strip_raw)
    }
    # Every session without a parent has this field, without a value.
    if rest.get("parent_id", "") is None:
        del rest["parent_id"]
    max_chars, max_bytes = options.max_field_chars, options.max_line_bytes
    tighter, size = max(64, max_chars // _TIGHTER), text_size(rest, max_bytes)
    # The size is estimated in characters, so a line in another alphabet may still be too long.
    kept = rest
    for limit in (max_chars, tighter) if size <= max_bytes else (tighter,):
        # Texts are cut first, which bounds the cost of redaction.
        kept = _cut(rest, limit) if size > limit else rest
        if size > max_bytes and text_size(kept, max_bytes) > max_bytes:
            kept = _short_members(kept, max_bytes)
        kept = redact_secrets(kept)
        line = _encode(_record(event, level, common, kept))
        # Redaction turned objects that weren't strings into long texts.
        if size <= limit < len(line):
            line = _encode(_record(event, level, common, kept := _cut(kept, limit)))
        if len(line) <= max_bytes:
            return line
    return _encode(_record(event, level, common, _short_members(kept, max_bytes)))


def broken_line(event: str, error: Exception) -> bytes:
    """Return the line of an event with a payload that can't be read."""
    problem = {"error": f"{type(error).__name__} while the payload was read"}
    return _encode(_record(str(event), "ERROR", {}, problem))


def _record(
    event: str, level: str, common: Mapping[str, object], data: Mapping[str, object]
) -> dict[str, Any]:
    now = common.get("timestamp") or datetime.now(UTC).isoformat(timespec="milliseconds")
    record: dict[str, Any] = {"ts": now, "lvl": level, "schema": _SCHEMA, "event": event}
    if "session_id" in common:
        record["session_id"] = common["session_id"]
    for key in TOP_LEVEL:
        if key in data:
            record[key] = data[key]
    rest = {key: value for key, value in data.items() if key not in TOP_LEVEL}
    if common.get("parent_id"):
        rest["parent_id"] = common["parent_id"]
    if rest:
        record["data"] = rest
    return record


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def _short_members(data: Mapping[str, object], max_bytes: int) -> dict[str, Any]:
    """Return the short members of a payload that is too large, and those of its objects."""
    room = 0

    def short(members: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        nonlocal room
        kept: dict[str, object] = {}
        for key, value in islice(members.items(), _MAX_SHORT_MEMBERS):
            is_object = isinstance(value, dict) and depth < _MAX_SHORT_DEPTH
            # Half a secret in a name wouldn't be recognized, so names are never cut.
            has_short_name = type(key) is str and len(key) <= _MAX_SHORT_CHARS
            if not has_short_name or not (is_object or _is_short(value)):
                continue
            if depth == 0:
                # This is the limit for the member and everything in it.
                room = max_bytes // _SHARE
            else:
                room -= len(key) + (len(value) if isinstance(value, str) else _MAX_NUMBER_CHARS)
            if room >= 0 and (not is_object or (value := short(value, depth + 1))):
                kept[key] = value
        return kept

    reason = "the payload is too large for one line: all but its short members is left out"
    return {**short(data, 0), "left_out": reason}


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_SHORT_CHARS
    return type(value) in (float, bool) or (type(value) is int and value.bit_length() <= 64)


def _cut(value: Any, max_chars: int) -> Any:
    """Copy a value with its texts cut to ``max_chars`` characters."""

    def cut(leaf: object, _frames: Sequence[Frame]) -> object:
        if isinstance(leaf, str):
            return _cut_text(leaf, max_chars)
        if isinstance(leaf, bytes | bytearray) and len(leaf) > max_chars:
            return f"[{len(leaf)} bytes left out]"
        return leaf

    return rebuild(value, cut, subject="", max_depth=_MAX_DEPTH, mark=True)


def _cut_text(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    redacted, unread = (
        redact_text(text[: max_chars + _MARGIN]),
        max(0, len(text) - max_chars - _MARGIN),
    )
    # Half a secret at the end of the margin isn't recognized. Redaction shortens the text before
    # the secret, which could move the secret to a position before the limit.
    end = min(max_chars, max(0, len(redacted) - _MARGIN)) if unread else max_chars
    kept = redacted[:end]
    left_out = unread + len(redacted) - len(kept)
    return f"{kept}… [{left_out} characters left out]" if left_out else kept


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def _encode(record: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    # The encoder rejects sets, bytes, third-party objects, numbers beyond 64 bits and lone
    # surrogates.
    except TypeError:
        shown = ToolResult(output=record).safe_hook_presentation()["output"]
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


# A worker thread opens the file. Lines are written in the thread of the event loop, because passing
# them to another thread costs many times as much as a write to the page cache, and data in the page
# cache survives when the process is killed. The reference page states the cost. Each line is
# written with a single write, so that no line is written in part.
#
# The writer that renames a full file holds its lock (flock). Other writers don't wait for the lock,
# because the event loop would wait with them. They continue to write to the file, and later find
# that it has another name.


class EventFile:
    """A file, accessible only to its owner, to which one or more sessions append lines.

    Every call blocks. With a limit, a full ``events.jsonl`` becomes ``events.jsonl.1``, and so on.

    Args:
        path: The file. The file and its directories are created if missing.
        max_bytes: The size at which the file is renamed. None for no limit.
        keep: The maximum number of renamed files.
    """

    def __init__(self, path: Path, max_bytes: int | None = None, keep: int = 5) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: int | None = None
        self._needs_newline = False
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        """True if lines can be written."""
        return self._file is not None

    def open(self) -> None:
        """Open the file.

        Raises:
            OSError: The file can't be opened or isn't a regular file, or it has a size limit and
                the system has no file locks.
        """
        if self._max_bytes is not None and fcntl is None:
            raise OSError("max_bytes needs file locks (flock), which this system does not have")
        make_folders(self.path.parent)
        self._open_newest()

    def _open_newest(self) -> int:
        # A symbolic link must not redirect the events, and a FIFO without a reader must not block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self.path))
            size = status.st_size
            self._needs_newline = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file = file
        return file

    def append(self, line: bytes) -> None:
        """Write one line, including its newline.

        Raises:
            OSError: The line was not written, or only in part. The partial line stays.
        """
        file = self._file
        if file is None:
            raise OSError(errno.EBADF, "not open", str(self.path))
        if self._max_bytes is not None:
            file = self._file_with_room(file, self._max_bytes - len(line))
        data = b"\n" + line if self._needs_newline else line
        written = os.write(file, data)
        self._needs_newline = written != len(data)
        if self._needs_newline:
            raise OSError(errno.ENOSPC, "only part of a line could be written", str(self.path))

    # ── rotation ──

    def _file_with_room(self, file: int, max_size: int) -> int:
        """Return the newest file, after renaming a file of more than ``max_size`` bytes."""
        if not self._is_newest(file):
            file = self._open_newest()
        size = os.fstat(file).st_size
        if size == 0 or size + self._needs_newline <= max_size:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if self._is_newest(file):
                    self._rename()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
        # Another writer is renaming the file. This line still goes into the same file.
        except BlockingIOError:
            pass
        except OSError as error:
            if not self._has_warned:
                _logger.warning(
                    "%s cannot be rotated and grows beyond max_bytes: %s", self.path, error
                )
            self._has_warned = True
        return file if self._is_newest(file) else self._open_newest()

    def _is_newest(self, file: int) -> bool:
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(file))
        except FileNotFoundError:
            return False

    def _rename(self) -> None:
        """Give the newest file the number 1, renumber the others, and remove those over the limit.

        Raises:
            OSError: The system refused. Every file still has a name, and no line is lost.
        """
        pattern = re.compile(rf"{re.escape(self.path.name)}\.([1-9][0-9]{{0,5}})")
        matches = (pattern.fullmatch(path.name) for path in self.path.parent.iterdir())
        numbers = {int(match[1]) for match in matches if match is not None}
        for number in numbers:
            if number > self._keep:
                self._part(number).unlink(missing_ok=True)
        free = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        for number in range(min(free, self._keep) - 1, 0, -1):
            self._part(number).replace(self._part(number + 1))
        # This comes last, because another writer may rename the next file from now on.
        self.path.replace(self._part(1))

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


# ── the handler ──────────────────────────────────────────────────────────────────────────────────

_CHANNEL = "observability.events"
_REQUEST_FIELDS = ("provider", "model", "iteration", "lvl", "level", *TOP_LEVEL)
"""Fields of ``provider:request`` that are logged.

The messages in the event are the whole conversation. Each message was logged when it was new.
"""
_OPENING_SECONDS = 10.0


class EventLog:
    """The handler, which writes one line per event.

    A file that can't be written doesn't affect the session. The first failure is logged at once,
    and the number of lost events at the end.

    Args:
        options: The configuration.
        hooks: The registry to listen to.

    Attributes:
        options: The configuration.
        written: The number of lines that this session wrote.
        lost: The number of events that couldn't be written.
    """

    def __init__(self, options: LogOptions, hooks: Hooks) -> None:
        self.options = options
        self.written: int = 0
        self.lost: int = 0
        self._hooks = hooks
        self._file = EventFile(options.path, options.max_bytes, options.keep)
        self._lowest = LEVELS.index(options.level)
        self._registered: dict[str, Callable[[], None]] = {}
        self._last_error: OSError | None = None

    def __repr__(self) -> str:
        return f"<EventLog {str(self.options.path)!r}, {self.written} written, {self.lost} lost>"

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Write one event. Always return "continue"."""
        try:
            level = level_of(event, data)
            if LEVELS.index(level) < self._lowest:
                return HookResult()
            line = write_line(event, level, data, self.options)
        # The payload may contain third-party objects that fail when read.
        except Exception as error:  # noqa: BLE001
            _logger.warning("the payload of %r cannot be written: %s", event, type(error).__name__)
            line = broken_line(event, error)
        try:
            self._file.append(line)
            self.written += 1
        except OSError as error:
            self._note_loss(error)
        return HookResult()

    def _note_loss(self, error: OSError) -> None:
        if self.lost == 0 and self._last_error is None:
            _logger.warning(
                "events cannot be written to %s: %s (the session continues)",
                self.options.path,
                error,
            )
        self._last_error = error
        self.lost += 1

    async def open(self) -> None:
        """Open the file. A failure is logged, not raised."""

        def work(_stop: Stop) -> None:
            self._file.open()

        try:
            await Workers(threads=1, timeout=_OPENING_SECONDS).run(
                work, label=f"opening {self.options.path}"
            )
        except (OSError, ToolFailure) as error:
            _logger.warning(
                "no events will be written to %s: %s (the session continues)",
                self.options.path,
                error,
            )
            self._last_error = error if isinstance(error, OSError) else TimeoutError(str(error))

    def listen(self, events: Iterable[str]) -> None:
        """Listen once to each of the events that the options include."""
        for event in events:
            is_new = event not in self._registered and "*" not in self._registered
            if is_new and self.options.wants(event):
                fields = _REQUEST_FIELDS if event == PROVIDER_REQUEST else None
                self._registered[event] = self._hooks.register(
                    event, self, priority=self.options.priority, name=MODULE, fields=fields
                )

    async def discover(self, coordinator: Coordinator) -> None:
        """Listen to the events that other modules announce.

        Modules announce events as a contribution. Older modules use a capability.
        """
        if not self.options.auto_discover:
            return
        announced = [
            coordinator.get_capability(_CHANNEL),
            *await coordinator.collect_contributions(_CHANNEL),
        ]
        for names in announced:
            if isinstance(names, str):
                self.listen([names])
            elif isinstance(names, Iterable):
                self.listen(name for name in names if isinstance(name, str) and name)

    def close(self) -> None:
        """Stop listening, close the file and log the number of lost events.

        A second call does nothing.
        """
        registered, self._registered = self._registered, {}
        for unregister in registered.values():
            unregister()
        was_open = self._file.is_open
        self._file.close()
        if self.lost and registered:
            reason = self._last_error
            _logger.warning(
                "%d events were not written to %s: %s", self.lost, self.options.path, reason
            )
        elif was_open:
            _logger.debug("%d events were written to %s", self.written, self.options.path)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], None]:
    """Start writing events.

    Args:
        coordinator: The coordinator of the session.
        config: The configuration. See `LogOptions` for its keys.

    Returns:
        The cleanup, which closes the log.

    Raises:
        PlanError: The configuration is wrong.
    """
    log = EventLog(read_log_options(coordinator, config), coordinator.hooks)
    logs: list[EventLog] = coordinator.session_state.setdefault(MODULE, [])

    def close() -> None:
        log.close()
        if log in logs:
            logs.remove(log)

    try:
        await log.open()
        additional = log.options.additional_events
        # "*" matches every event. With other names in addition, events would be written twice.
        log.listen(["*"] if "*" in additional else [*ALL_EVENTS, *OUR_EVENTS, *additional])
        logs.append(log)
        _logger.info("events of session %s go to %s", coordinator.session_id, log.options.path)
    except BaseException:
        close()
        raise
    return close


async def on_session_ready(coordinator: Coordinator) -> None:
    """Listen to the events that other modules announce. All modules are mounted by now."""
    for log in list(coordinator.session_state.get(MODULE, ())):
        await log.discover(coordinator)
