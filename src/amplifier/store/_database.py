"""One SQLite file: how it is opened, what is refused, and transactions that are on the disk when they return.

A full disk and the like are the `OSError` they would be elsewhere, with the file's name.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar, final

from amplifier.errors import AmplifierError

from .folders import close_to_others, sync_folder

T = TypeVar("T")

BUSY_SECONDS = 30.0
"""How long a transaction waits for those of other processes, which take milliseconds."""

_open: dict[Path, Database] = {}
_opening = threading.Lock()


class StoreDamagedError(AmplifierError):
    """The file does not hold what was written to it; nothing was read from it and nothing was changed.

    Attributes:
        path: The file.
        reason: What is wrong.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: {reason}; nothing was read from it and the file was left as it is: "
            "restore it from a backup, or move it away to begin anew"
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason), self.__dict__)


@final
class Database:
    """A file of SQLite with one connection per process, used by one thread at a time. Open it with `Database.open`.

    WAL: readers of other processes see the state before or after a transaction and never wait. ``synchronous=FULL``: a transaction is on the
    disk when it returns, also after a loss of power.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path = path
        self._users = 0
        self._process = os.getpid()
        self._lock = threading.Lock()
        log = path.with_name(f"{path.name}-wal")
        if lost := find_lost_transactions(log):
            raise StoreDamagedError(
                log, f"it is damaged, and {lost} transactions are behind the damage"
            )
        with self._translated():
            self._connection: sqlite3.Connection | None = _connect(path, busy_seconds)
        self._identity = _identity(path)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: Callable[[sqlite3.Connection], None] = lambda connection: None,
        check: Callable[[Database], None] = lambda database: None,
        busy_seconds: float = BUSY_SECONDS,
    ) -> Database:
        """Open a file, made for its owner alone if it is not there. Users in one process share a connection; each calls `close`.

        Args:
            path: The file, in a folder that is there.
            create: Creates the tables of a new file, which no other process sees before they are there.
            check: Called once per connection.
            busy_seconds: How long a transaction waits for those of other processes.

        Raises:
            StoreDamagedError: It is no database, or no regular file.
            UnsafeFolderError: It belongs to another user.
            OSError: The system refuses.
        """
        path = path.absolute()
        with _opening:
            database = _open.get(path)
            if database is not None and database._process != os.getpid():
                raise AmplifierError(
                    f"{path} was open when this process was forked, and SQLite cannot open it again here: "
                    "start processes with spawn, or fork before the first session is opened"
                )
            if database is None or not database._is_in_place():
                _refuse_irregular(path)
                if not path.exists():
                    _create(path, create)
                database = cls(path, busy_seconds)
                try:
                    check(database)
                    database._keep_log()
                except BaseException:
                    database._disconnect()
                    raise
                _open[path] = database
            database._users += 1
            return database

    def _keep_log(self) -> None:
        """Have a write-ahead log; changes a file that has none, so only after it was checked."""
        if self._connection is not None:
            with self._translated():
                self._connection.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Give it up; the last user closes the connection."""
        with _opening:
            self._users -= 1
            if self._users == 0:
                if _open.get(self.path) is self:
                    del _open[self.path]
                self._disconnect()

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):  # everything is on the disk; only tidying up can fail
                    self._connection.close()
                self._connection = None

    def transaction(
        self, work: Callable[[sqlite3.Connection], T], *, only_reads: bool = False
    ) -> T:
        """Do some work atomically; what it raises undoes it.

        Args:
            work: Gets the connection.
            only_reads: It changes nothing, so it need not wait for others that do.

        Raises:
            StoreDamagedError: The file is not as it was written, or was removed.
            OSError: The system refuses; for example, the disk is full.
            sqlite3.IntegrityError: A rule of the tables was violated.
        """
        with self._lock, self._translated():
            if self._connection is None:
                raise ValueError(f"{self.path} is not open")
            if not only_reads and not self._is_in_place():
                raise StoreDamagedError(self.path, "it was removed or replaced while it was open")
            connection = self._connection
            # A writer takes the lock at its beginning: it reads what it then changes.
            connection.execute("BEGIN" if only_reads else "BEGIN IMMEDIATE")
            try:
                done = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
            return done

    def _is_in_place(self) -> bool:
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError):
            raise
        except (
            sqlite3.Error,
            UnicodeDecodeError,
        ) as error:  # the latter if SQLite quotes bytes of a damaged file
            raise _translate(error, self.path) from error


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _refuse_irregular(path: Path) -> None:
    """Refuse what is no file of this user, before SQLite opens it or waits for it.

    No file is opened that may be a database: closing it again would release all locks that SQLite has on it in this process.
    """
    for each in (
        path,
        *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm", "journal")),
    ):
        try:
            found = each.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(each))
        if not stat.S_ISREG(found.st_mode):
            raise StoreDamagedError(each, "it is not a regular file")
        close_to_others(found, each)


def _create(path: Path, create: Callable[[sqlite3.Connection], None]) -> None:
    """Make a file under another name, and sync it once instead of at every step; another process may be faster."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN")
            create(connection)
            connection.execute("COMMIT")
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(new, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise _translate(error, path) from error
    finally:
        os.close(descriptor)
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                new.with_name(new.name + end).unlink(missing_ok=True)


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "PRAGMA wal_autocheckpoint = 256"
        )  # a log of 1 MB is quickly checked and read
        connection.execute("PRAGMA cell_size_check = ON")  # finds damage earlier
        connection.execute("PRAGMA secure_delete = ON")  # what was deleted is not left in the file
    except BaseException:
        connection.close()
        raise
    return connection


_REFUSALS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
}


def _translate(error: Exception, path: Path) -> Exception:
    """The system's refusals as the `OSError` they are; everything else means that the file is not what it should be."""
    number = _REFUSALS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if number is None:
        return StoreDamagedError(path, f"SQLite cannot use it ({error})")
    advice = "free some space" if number == errno.ENOSPC else "correct that"
    return OSError(
        number,
        f"{os.strerror(number)} ({error}), nothing was stored; {advice}, then go on",
        str(path),
    )


# ── damage in the write-ahead log ─────────────────────────────────────────────────────────────────
# SQLite reads the log up to the first frame whose checksum is wrong: that is what a crash leaves of a transaction that was being written. But only
# one transaction at a time is written and not yet synced. Where two or more are complete behind a wrong frame, at least one of them had been
# acknowledged, and would be lost without a word.
#
# The format is https://www.sqlite.org/fileformat2.html#the_write_ahead_log: a header of 32 bytes, then frames of a header of 24 bytes and a page.

_HEADER = 32
_FRAME_HEADER = 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))


def find_lost_transactions(log: Path) -> int:
    """How many complete transactions are behind a wrong frame of a log; 0 if at most one is, or if there is no log."""
    lost, beginning = _count_lost(log)
    while lost > 1:
        again = _count_lost(log)
        if again == (lost, beginning):
            return lost
        lost, beginning = (
            again  # another process writes it: a part of it may have been read before, another part after
        )
    return 0


def _count_lost(path: Path) -> tuple[int, bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, b""
    beginning = data[:_HEADER]
    if len(data) < _HEADER + _FRAME_HEADER:
        return 0, beginning
    magic, _, size, _, salts, first, second = struct.unpack_from(">IIII8sII", data)
    order = _MAGIC.get(magic)
    checksum = (0, 0) if order is None else _checksum(data[:24], order, (0, 0))
    if order is None or checksum != (first, second) or size not in _PAGE_SIZES:
        order, size, salts = (
            None,
            size if size in _PAGE_SIZES else 4096,
            data[_HEADER + 8 : _HEADER + 16],
        )
    lost = 0
    for start in range(_HEADER, len(data) - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        frame = data[start : start + _FRAME_HEADER + size]
        _, commits, its_salts, first, second = struct.unpack_from(">II8sII", frame)
        if order is not None:  # nothing was wrong so far
            checksum = _checksum(frame[:8] + frame[_FRAME_HEADER:], order, checksum)
            if its_salts == salts and checksum == (first, second):
                continue
            order = None
        lost += bool(commits) and its_salts == salts
    return lost, beginning


def _checksum(data: bytes, order: str, seed: tuple[int, int]) -> tuple[int, int]:
    one, two = seed
    for first, second in struct.iter_unpack(f"{order}II", data):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
