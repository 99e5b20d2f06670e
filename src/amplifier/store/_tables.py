"""The tables of a store."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from ._database import Database, StoreDamagedError
from .folders import WRITE, make_private_folder

STORE_FILE = "store.db"

# Number of the format. A release that changes it has to read the files of earlier releases.
_FORMAT = 2

# The application id in the header of the file.
_APPLICATION = 0x414D5053

_TABLES = (
    """
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL UNIQUE,
        messages INTEGER NOT NULL DEFAULT 0,
        used INTEGER NOT NULL,
        created TEXT, updated TEXT, directory TEXT, provider TEXT, model TEXT, plan TEXT,
        backend TEXT, title TEXT, status TEXT, forked_from TEXT,
        turn_plan TEXT, client TEXT
    )
    """,
    """
    CREATE TABLE messages (
        session INTEGER NOT NULL, position INTEGER NOT NULL, checksum INTEGER NOT NULL,
        body TEXT NOT NULL, PRIMARY KEY (session, position)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE steps (
        session INTEGER NOT NULL, position INTEGER NOT NULL, call BLOB NOT NULL,
        checksum INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (session, position, call)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE compactions (
        session INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
        body TEXT NOT NULL, PRIMARY KEY (session, number)
    ) WITHOUT ROWID
    """,
)


def open_sessions(root: Path) -> Database:
    """Open the store in a folder. Create both if they are missing.

    Raises:
        StoreDamagedError: The file is damaged, or another release wrote it.
        UnsafeFolderError: The folder or the file belongs to another user.
        OSError: The file cannot be opened.
    """
    make_private_folder(root, WRITE)
    return Database.open(root / STORE_FILE, create=_create_tables, check=_check_format)


def _create_tables(db: sqlite3.Connection) -> None:
    for table in _TABLES:
        db.execute(table)
    db.execute(f"PRAGMA application_id = {_APPLICATION}")
    db.execute(f"PRAGMA user_version = {_FORMAT}")


def _check_format(database: Database) -> None:
    def work(db: sqlite3.Connection) -> tuple[int, int]:
        [(application,)] = db.execute("PRAGMA application_id")
        [(version,)] = db.execute("PRAGMA user_version")
        return application, version

    application, version = database.transaction(work, only_reads=True)
    if application != _APPLICATION:
        raise StoreDamagedError(database.path, "it is not a store of sessions")
    if version != _FORMAT:
        reason = f"it has format {version}, expected {_FORMAT} (another release wrote it)"
        raise StoreDamagedError(database.path, reason)


def find_session(db: sqlite3.Connection, session_id: str, path: Path) -> int | None:
    """Return the number of a session, or None if the id is unknown.

    Raises:
        StoreDamagedError: The index of the ids and the table differ.
    """
    query = "SELECT number FROM sessions WHERE session_id = ?"
    match = db.execute(query, (session_id,)).fetchone()
    if match is None:
        return None
    [number] = match
    row = db.execute(
        "SELECT session_id, messages FROM sessions WHERE number = ?", (number,)
    ).fetchone()
    if row is None or row[0] != session_id or not isinstance(row[1], int):
        raise StoreDamagedError(path, f"the entry of session {session_id!r} is damaged")
    return int(number)


def new_session(db: sqlite3.Connection, session_id: str, path: Path) -> int:
    """Return the number of a session. Add it to the index if it is missing."""
    db.execute(
        "INSERT OR IGNORE INTO sessions (session_id, used) VALUES (?, ?)",
        (session_id, time.time_ns()),
    )
    number = find_session(db, session_id, path)
    if number is None:
        raise StoreDamagedError(path, f"the entry of session {session_id!r} cannot be found")
    return number
