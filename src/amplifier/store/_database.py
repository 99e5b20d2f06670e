"""One SQLite file with transactions that are on disk when they return.

Errors of the system, such as a full disk, are raised as `OSError` with the name of the file.
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

# A transaction waits this long for transactions of other processes, which take milliseconds.
BUSY_SECONDS = 30.0

_open: dict[Path, Database] = {}
_opening = threading.Lock()


class StoreDamagedError(AmplifierError):
    """The file is damaged. Nothing was read from it, and it was not changed.

    Attributes:
        path: The file.
        reason: Description of the damage.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: {reason}; nothing was read from it, and it was not changed: "
            "restore it from a backup, or move it away to start with an empty one"
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.reason), self.__dict__)


@final
class Database:
    """An SQLite file with one connection per process. Open it with `Database.open`.

    One thread at a time uses the connection. In WAL mode, readers in other processes never wait,
    and see the state before or after a transaction. With ``synchronous=FULL``, a transaction
    survives a loss of power once it has returned.

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
        """Open a file. Create it, accessible to its owner only, if it does not exist.

        Users in one process share a connection. Every user has to call `close`.

        Args:
            path: The file, in an existing folder.
            create: Creates the tables of a new file, before other processes can see it.
            check: Checks the file, once per connection.
            busy_seconds: Seconds that a transaction waits for those of other processes.

        Raises:
            StoreDamagedError: The file is not a database, or not a regular file.
            UnsafeFolderError: The file belongs to another user.
            OSError: The file cannot be opened.
        """
        path = path.absolute()
        with _opening:
            database = _open.get(path)
            if database is not None and database._process != os.getpid():
                raise AmplifierError(
                    f"{path} was open when this process was forked, and SQLite cannot open it "
                    "again here: start processes with spawn, or fork before the first session is "
                    "opened"
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
        """Turn on the write-ahead log. This may change the file, so check it first."""
        if self._connection is not None:
            with self._translated():
                self._connection.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        """Release the database. The last user closes the connection."""
        with _opening:
            self._users -= 1
            if self._users == 0:
                if _open.get(self.path) is self:
                    del _open[self.path]
                self._disconnect()

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                # Every transaction is on disk, so only the final checkpoint can fail.
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    def transaction(
        self, work: Callable[[sqlite3.Connection], T], *, only_reads: bool = False
    ) -> T:
        """Run a function in a transaction, which an exception rolls back.

        Args:
            work: Function of the connection.
            only_reads: Whether the work changes nothing, so that it need not wait for writers.

        Raises:
            StoreDamagedError: The file is damaged or was removed.
            OSError: The file cannot be read or written, for example because the disk is full.
            sqlite3.IntegrityError: A constraint of the tables was violated.
        """
        with self._lock, self._translated():
            if self._connection is None:
                raise ValueError(f"{self.path} is not open")
            if not only_reads and not self._is_in_place():
                raise StoreDamagedError(self.path, "it was removed or replaced while it was open")
            connection = self._connection
            # A writer acquires the lock immediately, because it first reads the rows that it
            # changes.
            connection.execute("BEGIN" if only_reads else "BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
            return result

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
        # SQLite may quote bytes of a damaged file in its message, which then cannot be decoded.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _translate(error, self.path) from error


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _refuse_irregular(path: Path) -> None:
    """Refuse anything but a file of this user, before SQLite opens it or waits for it.

    The files are not opened for this: closing a database file would release all locks that SQLite
    has on it in this process.
    """
    names = [path.name, *(f"{path.name}-{end}" for end in ("wal", "shm", "journal"))]
    for file in map(path.with_name, names):
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(file))
        if not stat.S_ISREG(status.st_mode):
            raise StoreDamagedError(file, "it is not a regular file")
        close_to_others(status, file)


def _create(path: Path, create: Callable[[sqlite3.Connection], None]) -> None:
    """Create the file under a temporary name, so that one sync suffices, and link it into place.

    If another process is faster, its file is kept.
    """
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
        # Keep the log below 1 MB, so that it is quick to check and read.
        connection.execute("PRAGMA wal_autocheckpoint = 256")
        # Detect damage earlier.
        connection.execute("PRAGMA cell_size_check = ON")
        # Overwrite deleted rows in the file.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


_SYSTEM_ERRORS = {
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
    """Return an `OSError` for errors of the system, and `StoreDamagedError` for all others."""
    number = _SYSTEM_ERRORS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if number is None:
        return StoreDamagedError(path, f"SQLite cannot use it ({error})")
    advice = "free some space" if number == errno.ENOSPC else "correct that"
    message = f"{os.strerror(number)} ({error}), nothing was stored; {advice}, then try again"
    return OSError(number, message, str(path))


# ── damage in the write-ahead log ─────────────────────────────────────────────────────────────────
# SQLite reads the log up to the first frame with a wrong checksum. This is normal after a crash
# that interrupted a transaction. But SQLite writes and syncs one transaction at a time. If two or
# more complete transactions follow a wrong frame, at least one of them had been acknowledged, and
# SQLite would drop it silently.
#
# The format is https://www.sqlite.org/fileformat2.html#the_write_ahead_log: a header of 32 bytes,
# then frames, each of a header of 24 bytes and a page.

_HEADER = 32
_FRAME_HEADER = 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))


def find_lost_transactions(log: Path) -> int:
    """Return the number of complete transactions after a wrong frame of a log.

    The result is 0 if it is at most one, or if there is no log.
    """
    count = _count_lost(log)
    while count[0] > 1:
        # Another process may have written while the log was read, so read until nothing changes.
        again = _count_lost(log)
        if again == count:
            return count[0]
        count = again
    return 0


def _count_lost(path: Path) -> tuple[int, bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, b""
    header = data[:_HEADER]
    if len(data) < _HEADER + _FRAME_HEADER:
        return 0, header
    magic, _, size, _, salts, first, second = struct.unpack_from(">IIII8sII", data)
    order = _MAGIC.get(magic)
    checksum = (0, 0) if order is None else _checksum(data[:24], order, (0, 0))
    if order is None or checksum != (first, second) or size not in _PAGE_SIZES:
        order = None
        size = size if size in _PAGE_SIZES else 4096
        salts = data[_HEADER + 8 : _HEADER + 16]
    lost = 0
    for start in range(_HEADER, len(data) - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        frame = data[start : start + _FRAME_HEADER + size]
        _, commits, frame_salts, first, second = struct.unpack_from(">II8sII", frame)
        # The order is None after the first wrong frame.
        if order is not None:
            checksum = _checksum(frame[:8] + frame[_FRAME_HEADER:], order, checksum)
            if frame_salts == salts and checksum == (first, second):
                continue
            order = None
        lost += bool(commits) and frame_salts == salts
    return lost, header


def _checksum(data: bytes, order: str, seed: tuple[int, int]) -> tuple[int, int]:
    one, two = seed
    for first, second in struct.iter_unpack(f"{order}II", data):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
