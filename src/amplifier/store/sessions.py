"""The sessions in a folder: the index that listings read, and what is kept with a session beside its conversation."""

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


_KEPT = (
    ("messages", "session"),
    ("steps", "session"),
    ("compactions", "session"),
    ("sessions", "number"),
)
"""The tables that have something of a session, and the column that says so."""


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

    def used(self, status: str | None = None, *, prompt: str | None = None) -> Self:
        """The same session, used now; its title is the beginning of its first prompt, unless it has another one."""
        title = self.title or redact_text(" ".join((prompt or "").split()))[:TITLE_LENGTH] or None
        return attrs.evolve(self, title=title, status=status or self.status, updated=now())


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_FIELDS = tuple(attribute.name for attribute in attrs.fields(SessionRecord))
_COLUMNS = ", ".join(_FIELDS)


class SessionIndex:
    """The sessions in a folder, for those who list, show and delete them; a process that writes one is not disturbed.

    Args:
        root: The folder; it is made with the first session.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def new_id(self) -> str:
        """An id that sorts by time and is short enough to be typed."""
        return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    def folder(self, session_id: str) -> Path:
        """The folder of a session.

        Raises:
            PlanError: It is not a session id.
        """
        return self.root / check_session_id(session_id)

    def is_open(self, session_id: str) -> bool:
        """Whether a process has it open."""
        return is_locked(self.folder(session_id) / LOCK_FILE)

    # ── reading; without a store there are no sessions ──

    def names(self) -> list[str]:
        """The ids of all sessions, sorted."""
        return self._read(
            lambda db: [
                name for (name,) in db.execute("SELECT session_id FROM sessions ORDER BY 1")
            ],
            [],
        )

    def exists(self, session_id: str) -> bool:
        """Whether anything of the session is stored."""
        return self._row(session_id, "1") is not None

    def records(self, *, with_children: bool = False) -> list[SessionRecord]:
        """All sessions, the one used last first; those of delegated tasks belong to the one that delegated."""
        rows: list[Any] = self._read(
            lambda db: db.execute(f"SELECT used, {_COLUMNS} FROM sessions").fetchall(), []
        )
        # Times are kept in seconds; within one, ``used`` has the order.
        found = sorted(((row[0], self._record(row)) for row in rows), key=_last_used, reverse=True)
        names = {record.session_id for _, record in found}
        return [
            record
            for _, record in found
            if with_children or parent_of(record.session_id) not in names
        ]

    def descendants(self, session_id: str) -> list[str]:
        """The sessions of delegated tasks, and of the tasks that those delegated, each after the one that delegated it.

        Also those that have nothing but an event log.
        """
        try:
            names = sorted(each.name for each in self.root.iterdir() if each.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [session_id]
        for parent in found:
            found += [name for name in names if parent_of(name) == parent and name not in found]
        return found[1:]

    def record(self, session_id: str) -> SessionRecord:
        """The metadata of a session; empty if there is no such session."""
        row = self._row(session_id, f"used, {_COLUMNS}")
        return SessionRecord(session_id=session_id) if row is None else self._record(row)

    def _record(self, row: Sequence[Any]) -> SessionRecord:
        fields = {
            name: value
            for name, value in zip(_FIELDS, row[1:], strict=True)
            if isinstance(value, str)
        }
        if "updated" not in fields:  # no one wrote metadata
            fields["updated"] = datetime.fromtimestamp(row[0] / 1e9, UTC).isoformat(
                timespec="seconds"
            )
        if fields.get("status") == RUNNING:
            folder = self.root / fields["session_id"]
            with suppress(OSError):  # where the lock cannot be examined, it may run
                if (folder / LOCK_FILE).exists() and not is_locked(folder / LOCK_FILE):
                    fields["status"] = INTERRUPTED
        return SessionRecord(**fields)

    def metadata(self, session_id: str) -> dict[str, Any]:
        """What a client wrote about a session; empty if there is nothing, or if it is damaged."""
        return self._value(session_id, "client") or {}

    def turn_plan(self, session_id: str) -> dict[str, Any] | None:
        """What was noted about the plan of the turn that runs or was cut off; None if nothing is known."""
        return self._value(session_id, "turn_plan")

    def _value(self, session_id: str, name: str) -> dict[str, Any] | None:
        row = self._row(session_id, name)
        with suppress(ValueError, TypeError, RecursionError):
            value = None if row is None else json.loads(row[0])
            return value if isinstance(value, dict) else None
        return None

    def transcript(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session as it is now; empty if there is none.

        Raises:
            StoreDamagedError: It is not as it was written.
        """
        return self._read(lambda db: _of_session(db, session_id, self.path, read_messages), [])

    def has_messages(self, session_id: str) -> bool:
        """Whether anything of the conversation of a session is kept."""
        row = self._row(session_id, "messages")
        return row is not None and row[0] > 0

    def steps(self, session_id: str) -> list[dict[str, Any]]:
        """The step journal as it is now; empty unless a turn runs or was cut off.

        Raises:
            StoreDamagedError: It is not as it was written.
        """
        return self._read(lambda db: _of_session(db, session_id, self.path, read_steps), [])

    # ── writing ──

    def write(self, record: SessionRecord, **values: Mapping[str, Any] | None) -> None:
        """Write the metadata of a session, and ``turn_plan`` if it is given.

        Raises:
            OSError: The system refuses.
        """
        row: dict[str, Any] = {name: _storable(getattr(record, name)) for name in _FIELDS}
        self._put(
            {
                **row,
                **{
                    name: None if value is None else json.dumps(value)
                    for name, value in values.items()
                },
            }
        )

    def write_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
        """Replace what a client wrote about a session, which is put into the index if it is not there.

        Raises:
            OSError: The system refuses.
        """
        self._put({"session_id": session_id, "client": json.dumps(metadata)})

    def _put(self, row: dict[str, Any]) -> None:
        check_session_id(row["session_id"])
        row = {**row, "used": time.time_ns()}
        statement = (
            f"INSERT INTO sessions ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
            f"ON CONFLICT (session_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in row)}"
        )
        self._write(lambda db: db.execute(statement, list(row.values())))

    def delete(self, session_id: str) -> None:
        """Remove a session and everything it kept, the sessions of its delegated tasks included.

        Raises:
            SessionLockedError: It is open somewhere.
            OSError: The system refuses.
        """
        folder = self.folder(session_id)
        lock = (
            SessionLock(folder) if folder.is_dir() else None
        )  # so that no process opens it meanwhile
        try:
            names = [session_id, *(name for name in self.names() if parent_of(name) == session_id)]

            def work(db: sqlite3.Connection) -> None:
                for name in names:
                    number = find_session(db, name, self.path)
                    for table, column in _KEPT:
                        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))

            self._write(work)
            for name in names:
                with suppress(
                    FileNotFoundError
                ):  # a session whose context is in memory may have no files
                    shutil.rmtree(self.folder(name))
        finally:
            if lock is not None:
                lock.release()

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / STORE_FILE

    def _row(self, session_id: str, columns: str) -> Any:
        wanted = f"SELECT {columns} FROM sessions WHERE session_id = ?"
        return self._read(lambda db: db.execute(wanted, (session_id,)).fetchone(), None)

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
    """The session that delegated a task to this one, by the form of the ids that tool-task assigns."""
    found = _CHILD.fullmatch(session_id)
    return None if found is None else found[1]


def _last_used(found: tuple[int, SessionRecord]) -> tuple[str, int, str]:
    used, record = found
    return record.updated or "", used, record.session_id


def _storable(text: str | None) -> str | None:
    """A text that the file can hold: without lone surrogates, as in the name of a file."""
    return None if text is None else text.encode(errors="backslashreplace").decode()


def _of_session(
    db: sqlite3.Connection,
    session_id: str,
    path: Path,
    read: Callable[[sqlite3.Connection, int, Path], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    number = find_session(db, session_id, path)
    return [] if number is None else read(db, number, path)
