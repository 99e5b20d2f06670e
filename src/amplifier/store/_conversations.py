"""The conversation and the journals of a session, with one writer.

Every message and step has a checksum, and the session has the number of its messages, because
SQLite detects only damage to its own structure, not to the stored text.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from amplifier._internal.json import Frame, canonical_dumps, format_path, rebuild
from amplifier.errors import ModelError

from ._database import Database, StoreDamagedError
from ._tables import STORE_FILE, find_session, new_session, open_sessions
from .folders import SessionLock, make_private_folder

logger = logging.getLogger("amplifier.store")

# The decoder handles this depth on any stack.
_MAX_DEPTH = 200
_NOT_JSON = "message cannot be kept as JSON"


@final
class Conversation:
    """The conversation of one session, for its writer.

    Args:
        folder: Folder of the session, inside the folder of all sessions.
        session_id: Id of the session.
    """

    def __init__(self, folder: Path, session_id: str) -> None:
        self._folder = folder
        self._session_id = session_id
        self._lock: SessionLock | None = None
        self._database: Database | None = None
        self._session = 0
        self._length = 0
        self.path: Path = folder.parent / STORE_FILE

    @property
    def is_open(self) -> bool:
        """Whether the conversation can be written."""
        return self._database is not None

    def open(self) -> list[dict[str, Any]]:
        """Lock the conversation for this writer, and return its messages.

        Raises:
            SessionLockedError: Another session has the conversation open.
            StoreDamagedError: The file is damaged.
            UnsafeFolderError: A folder or file belongs to another user.
            OSError: The file cannot be opened.
        """
        try:
            self._database = database = open_sessions(self._folder.parent)
            make_private_folder(self._folder)
            self._lock = SessionLock(self._folder)
            number = database.transaction(
                lambda db: find_session(db, self._session_id, self.path), only_reads=True
            )
            if number is None:
                if self._lock.was_used:
                    self._report_lost(database)
                number = database.transaction(
                    lambda db: new_session(db, self._session_id, self.path)
                )
            self._session = session = number
            messages = database.transaction(
                lambda db: read_messages(db, session, self.path), only_reads=True
            )
            self._length = len(messages)
            return messages
        except BaseException:
            self.close()
            raise

    def _report_lost(self, database: Database) -> None:
        """Report that a previously opened session is missing from the index.

        The index is damaged, or its file was moved away or replaced.
        """
        problem = database.transaction(
            lambda db: db.execute("PRAGMA integrity_check(1)").fetchone()[0], only_reads=True
        )
        if problem != "ok":
            reason = f"session {self._session_id!r} is not in it, and {problem}"
            raise StoreDamagedError(self.path, reason)
        logger.warning(
            "%s: session %r was used before and is no longer there; a new conversation starts",
            self.path,
            self._session_id,
        )

    def close(self) -> None:
        """Release the conversation. Idempotent."""
        database, self._database = self._database, None
        lock, self._lock = self._lock, None
        if database is not None:
            database.close()
        # Release the lock after closing the file, so that the next writer is alone.
        if lock is not None:
            lock.release()

    # ── messages ──

    def append(self, texts: Sequence[str], steps: Iterable[Mapping[str, Any]] = ()) -> None:
        """Append messages, and write records to the step journal.

        On return, all are on disk. After an error, none is stored.

        Args:
            texts: The messages as JSON.
            steps: Records as for `write_steps`.

        Raises:
            StoreDamagedError: Another process changed or removed the file.
            OSError: The file cannot be written, for example because the disk is full.
        """
        session, length = self._session, self._length

        def work(db: sqlite3.Connection) -> None:
            _insert(db, session, length, texts)
            _count(db, session, length, length + len(texts), self.path)
            _put_steps(db, session, steps)

        self._change(work)
        self._length += len(texts)

    def replace(self, texts: Sequence[str]) -> None:
        """Replace the whole conversation, and empty the journals. After an error nothing changes.

        Args:
            texts: The messages as JSON.

        Raises:
            StoreDamagedError: Another process changed or removed the file.
            OSError: The file cannot be written.
        """
        session, length = self._session, self._length

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM messages WHERE session = ?", (session,))
            db.execute("DELETE FROM steps WHERE session = ?", (session,))
            db.execute("DELETE FROM compactions WHERE session = ?", (session,))
            _insert(db, session, 0, texts)
            _count(db, session, length, len(texts), self.path)

        self._change(work)
        self._length = len(texts)

    # ── the journal of compactions ──

    def read_compactions(self) -> list[dict[str, Any]]:
        """Return the records of the journal, in order.

        Raises:
            StoreDamagedError: A record is damaged or missing.
        """
        session = self._session
        return self._require_open().transaction(
            lambda db: read_compactions(db, session, self.path), only_reads=True
        )

    def write_compaction(self, number: int, record: dict[str, Any]) -> None:
        """Write a record to the journal. It replaces the record with the same number, if any."""
        text = encode_message(record)[0]
        row = (self._session, number, zlib.crc32(text.encode(), number), text)
        statement = (
            "INSERT OR REPLACE INTO compactions (session, number, checksum, body) "
            "VALUES (?, ?, ?, ?)"
        )
        self._change(lambda db: db.execute(statement, row))

    # ── the step journal ──

    def read_steps(self) -> list[dict[str, Any]]:
        """Return the records of the journal.

        Raises:
            StoreDamagedError: A record is damaged.
        """
        session = self._session
        return self._require_open().transaction(
            lambda db: read_steps(db, session, self.path), only_reads=True
        )

    def write_steps(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records to the journal.

        A record belongs to the message at its ``position``. It removes the records of earlier
        messages, and replaces the one with the same ``position`` and ``call``.
        """
        session = self._session
        self._change(lambda db: _put_steps(db, session, records))

    def remove_steps(self) -> None:
        """Empty the journal."""
        session = self._session
        self._change(lambda db: db.execute("DELETE FROM steps WHERE session = ?", (session,)))

    def _change(self, work: Callable[[sqlite3.Connection], object]) -> None:
        try:
            self._require_open().transaction(work)
        except sqlite3.IntegrityError as error:
            raise _changed_by_others(self.path) from error

    def _require_open(self) -> Database:
        if self._database is None:
            raise ValueError(f"{self.path} is not open")
        return self._database


def _insert(db: sqlite3.Connection, session: int, first: int, texts: Iterable[str]) -> None:
    rows = (
        (session, position, zlib.crc32(text.encode(), position & 0xFFFFFFFF), text)
        for position, text in enumerate(texts, first)
    )
    db.executemany(
        "INSERT INTO messages (session, position, checksum, body) VALUES (?, ?, ?, ?)", rows
    )


def _count(db: sqlite3.Connection, session: int, before: int, after: int, path: Path) -> None:
    changed = db.execute(
        "UPDATE sessions SET messages = ? WHERE number = ? AND messages = ?",
        (after, session, before),
    )
    if changed.rowcount != 1:
        raise _changed_by_others(path)


def _changed_by_others(path: Path) -> StoreDamagedError:
    reason = "another process changed the conversation while this session had it open"
    return StoreDamagedError(path, reason)


def _put_steps(db: sqlite3.Connection, session: int, records: Iterable[Mapping[str, Any]]) -> None:
    for record in records:
        text = encode_message(dict(record))[0]
        position = record["position"]
        call = record["call"].encode(errors="surrogatepass")
        checksum = zlib.crc32(text.encode(), position & 0xFFFFFFFF)
        db.execute("DELETE FROM steps WHERE session = ? AND position < ?", (session, position))
        db.execute(
            "INSERT OR REPLACE INTO steps (session, position, call, checksum, body) "
            "VALUES (?, ?, ?, ?, ?)",
            (session, position, call, checksum, text),
        )


def read_messages(db: sqlite3.Connection, session: int, path: Path) -> list[dict[str, Any]]:
    """Return the messages of a session.

    Raises:
        StoreDamagedError: A message is damaged or missing.
    """
    [(length,)] = db.execute("SELECT messages FROM sessions WHERE number = ?", (session,))
    rows = db.execute(
        "SELECT position, checksum, CAST(body AS BLOB) FROM messages "
        "WHERE session = ? ORDER BY position",
        (session,),
    ).fetchall()
    messages = []
    for expected, (position, checksum, body) in enumerate(rows):
        if position != expected:
            raise StoreDamagedError(path, f"message {expected + 1} of a conversation is missing")
        message = _decode(position, checksum, body)
        if message is None or not isinstance(message.get("role"), str):
            raise StoreDamagedError(path, f"message {expected + 1} of a conversation is damaged")
        messages.append(message)
    if len(messages) != length:
        reason = f"it has {len(messages)} messages of a conversation, and {length} were stored"
        raise StoreDamagedError(path, reason)
    return messages


def read_compactions(db: sqlite3.Connection, session: int, path: Path) -> list[dict[str, Any]]:
    """Return the records of a session's compactions.

    Raises:
        StoreDamagedError: A record is damaged or missing.
    """
    rows = db.execute(
        "SELECT number, checksum, CAST(body AS BLOB) FROM compactions "
        "WHERE session = ? ORDER BY number",
        (session,),
    )
    records = []
    for expected, row in enumerate(rows):
        record = _decode(*row)
        if record is None or row[0] != expected:
            raise StoreDamagedError(path, "a record of the compactions is damaged")
        records.append(record)
    return records


def read_steps(db: sqlite3.Connection, session: int, path: Path) -> list[dict[str, Any]]:
    """Return the records of a session's step journal.

    Raises:
        StoreDamagedError: A record is damaged.
    """
    rows = db.execute(
        "SELECT position, checksum, CAST(body AS BLOB) FROM steps "
        "WHERE session = ? ORDER BY position, call",
        (session,),
    )
    records = []
    for row in rows:
        record = _decode(*row)
        if record is None or record.get("position") != row[0] or not _is_step(record):
            raise StoreDamagedError(path, "a record of the step journal is damaged")
        records.append(record)
    return records


def _is_step(record: dict[str, Any]) -> bool:
    return isinstance(record.get("step"), str) and isinstance(record.get("call"), str)


def _decode(position: Any, checksum: Any, body: Any) -> dict[str, Any] | None:
    """Return a stored record, or None if it is damaged."""
    if not isinstance(body, bytes) or zlib.crc32(body, position & 0xFFFFFFFF) != checksum:
        return None
    try:
        # Decoded first, because `json.loads` guesses the encoding of bytes.
        record = json.loads(str(body, "utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


# ── messages as JSON ──


def encode_message(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a message as JSON text, and as the dict that will be read back.

    Raises:
        ModelError: The message cannot be written as JSON.
    """
    try:
        text = _text_of(message)
        stored: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        # Raise an error that contains the path.
        canonical_dumps(message)
        raise ModelError([("", str(error))], subject=_NOT_JSON) from error
    # Tuples become arrays, which is allowed. Keys that are not text would become text.
    if stored != message:
        rebuild(message, _refuse_other_keys, subject=_NOT_JSON)
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        rebuild(stored, subject=_NOT_JSON, max_depth=_MAX_DEPTH)
    return text, stored


def _refuse_other_keys(value: Any, frames: Sequence[Frame]) -> Any:
    if frames and frames[-1].keys is not None and not isinstance(frames[-1].key(), str):
        problem = f"expected a str as key, got {type(frames[-1].key()).__name__}"
        path = format_path(frame.key() for frame in frames)
        raise ModelError([(path, problem)], subject=_NOT_JSON)
    return value


def _text_of(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    # Lone surrogates, which names of files may contain, are kept as escapes.
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text
