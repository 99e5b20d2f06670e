"""The index of the sessions in a folder, with their metadata."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs

from amplifier._internal.json import redact_text

from ._conversations import read_messages, read_steps
from ._tables import STORE_FILE, find_session, open_sessions
from .folders import LOCK_FILE, SessionLock, check_session_id, is_locked

T = TypeVar("T")

RUNNING = "running"
INTERRUPTED = "interrupted"
EVENTS_FILE = "events.jsonl"
TITLE_LENGTH = 80

_CHILD = re.compile(r"(.+)-[0-9a-f]{16}_.+")

# All tables with rows of a session, and their columns for its number.
_SESSION_COLUMNS = (
    ("messages", "session"),
    ("steps", "session"),
    ("compactions", "session"),
    ("sessions", "number"),
)


@attrs.frozen(kw_only=True)
class SessionRecord:
    """The metadata of a session. Times are ISO 8601 in UTC.

    Attributes:
        session_id: Id of the session.
        created: Time of its creation.
        updated: Time of its latest use.
        directory: Working directory in which it was started.
        provider: Module id of the provider.
        model: Name of the model.
        plan: Plan file with which it was started, or None for the default plan.
        backend: The event loop: asyncio or trio.
        title: Beginning of its first prompt.
        status: State of its latest turn: success, error, cancelled, running, or interrupted if
            the process was killed during the turn.
        forked_from: Id of the session from which it was forked, or None.
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

    def used(self, status: str | None = None, *, prompt: str | None = None) -> Self:
        """Return the record of the session as used now.

        The beginning of the prompt becomes the title, unless there is a title.
        """
        title = self.title or redact_text(" ".join((prompt or "").split()))[:TITLE_LENGTH] or None
        return attrs.evolve(self, title=title, status=status or self.status, updated=now())


def now() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_FIELDS = tuple(attribute.name for attribute in attrs.fields(SessionRecord))
_COLUMNS = ", ".join(_FIELDS)


class SessionIndex:
    """Lists, reads and deletes the sessions in a folder.

    This does not disturb processes that write sessions.

    Args:
        root: The folder. The first session creates it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def new_id(self) -> str:
        """Return a new id that sorts by time and is short enough to be typed."""
        return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    def folder(self, session_id: str) -> Path:
        """Return the folder of a session.

        Raises:
            PlanError: It is not a session id.
        """
        return self.root / check_session_id(session_id)

    def is_open(self, session_id: str) -> bool:
        """Return whether a process has the session open."""
        return is_locked(self.folder(session_id) / LOCK_FILE)

    # ── reading ──
    # A folder without a store has no sessions.

    def names(self) -> list[str]:
        """Return the ids of all sessions, sorted."""
        query = "SELECT session_id FROM sessions ORDER BY 1"
        return self._read(lambda db: [name for (name,) in db.execute(query)], [])

    def exists(self, session_id: str) -> bool:
        """Return whether anything of the session is stored."""
        return self._row(session_id, "1") is not None

    def records(self, *, with_children: bool = False) -> list[SessionRecord]:
        """Return the metadata of all sessions, the latest used first.

        Args:
            with_children: Whether to include the sessions of delegated tasks.
        """
        query = f"SELECT used, {_COLUMNS} FROM sessions"
        rows: list[Any] = self._read(lambda db: db.execute(query).fetchall(), [])
        # Times are stored in whole seconds, so the column ``used`` orders the sessions within a
        # second.
        entries = [(row[0], self._record(row)) for row in rows]
        entries.sort(key=_last_used, reverse=True)
        records = [record for _, record in entries]
        if with_children:
            return records
        names = {record.session_id for record in records}
        return [record for record in records if parent_of(record.session_id) not in names]

    def descendants(self, session_id: str) -> list[str]:
        """Return the sessions of delegated tasks at all depths, every one after its parent.

        Sessions that have only an event log are included.
        """
        try:
            names = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        family = [session_id]
        for parent in family:
            family += [name for name in names if parent_of(name) == parent and name not in family]
        return family[1:]

    def record(self, session_id: str) -> SessionRecord:
        """Return the metadata of a session, which is empty if the session does not exist."""
        row = self._row(session_id, f"used, {_COLUMNS}")
        return SessionRecord(session_id=session_id) if row is None else self._record(row)

    def _record(self, row: Sequence[Any]) -> SessionRecord:
        values = zip(_FIELDS, row[1:], strict=True)
        fields = {name: value for name, value in values if isinstance(value, str)}
        # Without metadata, the time of the latest write counts.
        if "updated" not in fields:
            used = datetime.fromtimestamp(row[0] / 1e9, UTC)
            fields["updated"] = used.isoformat(timespec="seconds")
        if fields.get("status") == RUNNING:
            folder = self.root / fields["session_id"]
            # If the lock cannot be examined, the turn may still be running.
            with suppress(OSError):
                if (folder / LOCK_FILE).exists() and not is_locked(folder / LOCK_FILE):
                    fields["status"] = INTERRUPTED
        return SessionRecord(**fields)

    def metadata(self, session_id: str) -> dict[str, Any]:
        """Return the client's metadata of a session, empty if it is missing or damaged."""
        return self._value(session_id, "client") or {}

    def turn_plan(self, session_id: str) -> dict[str, Any] | None:
        """Return the notes about the plan of the running or interrupted turn, or None."""
        return self._value(session_id, "turn_plan")

    def _value(self, session_id: str, name: str) -> dict[str, Any] | None:
        row = self._row(session_id, name)
        with suppress(ValueError, TypeError, RecursionError):
            value = None if row is None else json.loads(row[0])
            return value if isinstance(value, dict) else None
        return None

    def transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the current conversation of a session, empty if there is none.

        Raises:
            StoreDamagedError: The conversation is damaged.
        """
        return self._read(lambda db: _rows_of(db, session_id, self.path, read_messages), [])

    def has_messages(self, session_id: str) -> bool:
        """Return whether the conversation of a session has messages."""
        row = self._row(session_id, "messages")
        return row is not None and row[0] > 0

    def steps(self, session_id: str) -> list[dict[str, Any]]:
        """Return the step journal, which is empty unless a turn is running or was interrupted.

        Raises:
            StoreDamagedError: The journal is damaged.
        """
        return self._read(lambda db: _rows_of(db, session_id, self.path, read_steps), [])

    # ── writing ──

    def write(self, record: SessionRecord, **values: Mapping[str, Any] | None) -> None:
        """Write the metadata of a session, and ``turn_plan`` if it is passed.

        Raises:
            OSError: The store cannot be written.
        """
        row: dict[str, Any] = {name: _storable(getattr(record, name)) for name in _FIELDS}
        for name, value in values.items():
            row[name] = None if value is None else json.dumps(value)
        self._put(row)

    def write_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
        """Replace the client's metadata of a session. Add the session if it is missing.

        Raises:
            OSError: The store cannot be written.
        """
        self._put({"session_id": session_id, "client": json.dumps(metadata)})

    def _put(self, row: dict[str, Any]) -> None:
        check_session_id(row["session_id"])
        row = {**row, "used": time.time_ns()}
        changes = ", ".join(f"{name} = excluded.{name}" for name in row)
        statement = (
            f"INSERT INTO sessions ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
            f"ON CONFLICT (session_id) DO UPDATE SET {changes}"
        )
        self._write(lambda db: db.execute(statement, list(row.values())))

    def delete(self, session_id: str) -> None:
        """Remove a session with everything it stored, and the sessions of its delegated tasks.

        Raises:
            SessionLockedError: The session is open.
            OSError: The store cannot be written.
        """
        folder = self.folder(session_id)
        # Prevent other processes from opening the session during the deletion.
        lock = SessionLock(folder) if folder.is_dir() else None
        try:
            names = [session_id, *(name for name in self.names() if parent_of(name) == session_id)]

            def work(db: sqlite3.Connection) -> None:
                for name in names:
                    number = find_session(db, name, self.path)
                    for table, column in _SESSION_COLUMNS:
                        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))

            self._write(work)
            for name in names:
                # A session with its context in memory may have no files.
                with suppress(FileNotFoundError):
                    shutil.rmtree(self.folder(name))
        finally:
            if lock is not None:
                lock.release()

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.root / STORE_FILE

    def _row(self, session_id: str, columns: str) -> Any:
        query = f"SELECT {columns} FROM sessions WHERE session_id = ?"
        return self._read(lambda db: db.execute(query, (session_id,)).fetchone(), None)

    def _read(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        if not os.path.lexists(self.path):
            return empty
        database = open_sessions(self.root)
        try:
            return database.transaction(work, only_reads=True)
        finally:
            database.close()

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        database = open_sessions(self.root)
        try:
            database.transaction(work)
        finally:
            database.close()


def parent_of(session_id: str) -> str | None:
    """Return the id of the session that delegated a task to this one, or None.

    The ids that tool-task assigns contain it.
    """
    match = _CHILD.fullmatch(session_id)
    return None if match is None else match[1]


def _last_used(entry: tuple[int, SessionRecord]) -> tuple[str, int, str]:
    used, record = entry
    return record.updated or "", used, record.session_id


def _storable(text: str | None) -> str | None:
    """Escape lone surrogates, which names of files may contain and SQLite cannot store."""
    return None if text is None else text.encode(errors="backslashreplace").decode()


def _rows_of(
    db: sqlite3.Connection,
    session_id: str,
    path: Path,
    read: Callable[[sqlite3.Connection, int, Path], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    number = find_session(db, session_id, path)
    return [] if number is None else read(db, number, path)
