"""The stored sessions: lists, finds, describes and deletes them.

    <home>/sessions/<id>/     0700
    ├── messages.log          the conversation, written by context-persistent
    ├── lock                  held while a session is open
    ├── events.jsonl          the events, written by hooks-logging
    ├── steps.log             while a turn runs, or was cut off: its tool calls, written by context-persistent
    ├── turn-plan.json        the same: the plan of that turn, see `turn_plan`
    ├── client.json    0600   written here: what a client of `amplifier serve` wants to keep with it
    └── metadata.json  0600   written here: for listings, and to resume with the same provider, plan and working directory

A session whose metadata file is damaged or absent is listed and can be resumed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from amplifier._spelling import did_you_mean, nearest
from amplifier.cli.core.exit_codes import CommandError
from amplifier.cli.core.private_file import replace_file
from amplifier.errors import PlanError
from amplifier.plan import validate_session_id

from .home_folder import require_writable
from .transcript import FILE_NAME, Transcript, read_steps, read_transcript

__all__ = ["EVENTS_FILE", "LAST", "SessionRecord", "SessionStore"]

LAST = "last"
"""The name for the session that was used last."""

EVENTS_FILE = "events.jsonl"

RUNNING = "running"
INTERRUPTED = "interrupted"

_CHILD = re.compile(r"(.+)-[0-9a-f]{16}_.+")

_METADATA = "metadata.json"
_CLIENT = "client.json"


@attrs.frozen(kw_only=True)
class SessionRecord:
    """The metadata of a session. Times are ISO 8601 in UTC.

    Attributes:
        directory: The working directory it was started in.
        plan: The plan file it was started with; None for the default plan.
        provider: The provider's module id.
        status: How its latest turn ended: success, error, cancelled; running while it runs, interrupted if its process
            was killed meanwhile.
        title: The beginning of its first prompt.
    """

    session_id: str
    created: str | None = None
    updated: str | None = None
    directory: str | None = None
    provider: str | None = None
    model: str | None = None
    plan: str | None = None
    backend: str | None = None
    title: str | None = None
    status: str | None = None
    forked_from: str | None = None


def now() -> str:
    """The current time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class SessionStore:
    """The folder of all sessions.

    Args:
        root: Its path; created with the first session.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, session_id: str) -> Path:
        """The folder of a session."""
        return self.root / validate_session_id(session_id)

    def new_id(self) -> str:
        """An id that sorts by time and is short enough to be typed."""
        return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    def exists(self, session_id: str) -> bool:
        """Whether the session has any files."""
        return _has_session(self.folder(session_id))

    def is_open(self, session_id: str) -> bool:
        """Whether another process has it open."""
        try:
            with self._held(self.folder(session_id)):
                return False
        except CommandError:
            return True

    def holder(self, session_id: str) -> str:
        """The process that has a session open, in words for the middle of a sentence; empty if it is not known."""
        try:
            held = json.loads((self.folder(session_id) / "lock").read_text(encoding="utf-8"))
            return f" (process {int(held['pid'])})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    # ── reading ──

    def records(self, *, with_children: bool = False) -> list[SessionRecord]:
        """All sessions, the one used last first; those of delegated tasks belong to the one that delegated."""
        names = self._names()
        found = [self.record(name) for name in names if with_children or _parent_of(name) not in names]
        return sorted(found, key=self._used, reverse=True)

    def _used(self, record: SessionRecord) -> tuple[str, int, str]:
        """When a session was used last. Times are kept in seconds; within one, the file system knows the order."""
        written = 0
        with suppress(OSError):
            written = (self.folder(record.session_id) / _METADATA).stat().st_mtime_ns
        return record.updated or "", written, record.session_id

    def _names(self) -> list[str]:
        try:
            return sorted(each.name for each in self.root.iterdir() if _is_session_id(each.name) and _has_session(each))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            require_writable(self.root)
            raise

    def record(self, session_id: str) -> SessionRecord:
        """The metadata of a session; a missing time is taken from its files."""
        folder = self.folder(session_id)
        known: Any = None
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
        given = known if isinstance(known, dict) else {}
        names = attrs.fields_dict(SessionRecord).keys() - {"session_id"}
        fields = {name: given[name] for name in names if isinstance(given.get(name), str)}
        if fields.get("status") == RUNNING and not self._may_be_open(folder):
            fields["status"] = INTERRUPTED
        for file in (folder / FILE_NAME, folder):
            if "updated" in fields:
                break
            with suppress(OSError):
                fields["updated"] = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
        return SessionRecord(session_id=session_id, **fields)

    def metadata(self, session_id: str) -> dict[str, Any]:
        """What a client wrote about a session; empty if there is nothing, or if it is damaged."""
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads((self.folder(session_id) / _CLIENT).read_text(encoding="utf-8"))
            return known if isinstance(known, dict) else {}
        return {}

    def transcript(self, session_id: str) -> Transcript:
        """The conversation as it is on disk now."""
        return read_transcript(self.folder(session_id))

    def steps(self, session_id: str) -> list[dict[str, Any]]:
        """The step journal as it is on disk now; empty unless a turn runs or was cut off."""
        return read_steps(self.folder(session_id))

    def descendants(self, session_id: str) -> list[str]:
        """The sessions of delegated tasks, and of the tasks that those delegated, each after the one that delegated it."""
        try:
            names = sorted(each.name for each in self.root.iterdir() if _is_session_id(each.name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [session_id]
        for parent in found:
            found += [name for name in names if _parent_of(name) == parent and name not in found]
        return found[1:]

    def find(self, wanted: str) -> SessionRecord:
        """The session that an id, a unique beginning of an id, or ``last`` refers to.

        Raises:
            CommandError: It refers to none, or to several; the message lists candidates.
        """
        names = self._names()
        if wanted == LAST and LAST not in names:
            records = self.records()
            if not records:
                raise CommandError(f"there is no session yet in {self.root}; begin one with: amplifier run")
            return records[0]
        if wanted in names:
            return self.record(wanted)
        begun = [name for name in names if wanted and name.startswith(wanted)]
        if len(begun) == 1:
            return self.record(begun[0])
        if begun:
            raise CommandError(f"{wanted!r} is the beginning of {len(begun)} session ids: {', '.join(begun[:5])}")
        near = nearest(wanted, names, cutoff=0.5)
        advice = f"{did_you_mean(near)} " if near else ""
        raise CommandError(f"no session {wanted!r} in {self.root}; {advice}`amplifier session list` shows all of them")

    # ── writing ──

    def write(self, record: SessionRecord) -> None:
        """Write the metadata of a session atomically.

        Raises:
            OSError: The system refuses.
        """
        folder = self.folder(record.session_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = {name: value for name, value in attrs.asdict(record).items() if value is not None}
        text = json.dumps(values, ensure_ascii=False, indent=2) + "\n"
        replace_file(folder / _METADATA, text.encode(errors="backslashreplace"))

    def write_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
        """Replace what a client wrote about a session, atomically.

        Raises:
            OSError: The system refuses.
        """
        folder = self.folder(session_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(folder / _CLIENT, json.dumps(metadata).encode())

    def delete(self, session_id: str) -> None:
        """Remove a session and everything it kept, the sessions of its delegated tasks included.

        Raises:
            CommandError: It is open somewhere.
            OSError: The system refuses.
        """
        with self._held(self.folder(session_id)):
            for name in [session_id, *(name for name in self._names() if _parent_of(name) == session_id)]:
                # Renamed first, in one step, so that a listing never shows half of a session.
                doomed = self.root / f".deleted-{secrets.token_hex(8)}"
                with suppress(FileNotFoundError):  # a session whose context is in memory may have no files
                    self.folder(name).rename(doomed)
                    shutil.rmtree(doomed)

    def _may_be_open(self, folder: Path) -> bool:
        """Whether the session may be open; True if its lock cannot be examined."""
        try:
            with self._held(folder):
                return not (folder / "lock").exists()
        except (CommandError, OSError):
            return True

    @contextmanager
    def _held(self, folder: Path) -> Iterator[None]:
        """Hold the session's lock, if it has one, so that no process opens the session meanwhile."""
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            yield
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = self.holder(folder.name)
                raise CommandError(
                    f"session {folder.name!r} is open in another process{who}; end that one first"
                ) from None
            yield
        finally:
            os.close(descriptor)


def _parent_of(name: str) -> str | None:
    """The session that delegated a task to this one, by the form of the ids that tool-task assigns."""
    found = _CHILD.fullmatch(name)
    return None if found is None else found[1]


def _has_session(folder: Path) -> bool:
    """Whether a folder has files of a session."""
    return (folder / FILE_NAME).exists() or (folder / _METADATA).exists()


def _is_session_id(name: str) -> bool:
    try:
        validate_session_id(name)
    except PlanError:
        return False
    return True
