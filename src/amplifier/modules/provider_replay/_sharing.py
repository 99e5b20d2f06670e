"""Which sessions of this process share a file, and in which order they were opened.

Sessions share a file while they are open at the same time, and those whose plans have the same `run` also one after the other. They are
numbered in the order in which they are opened: the first is ``main``, the second ``main-2``. What they record is in one `Cassette` in
memory, so that none of them overwrites what another has recorded.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from weakref import WeakSet

import attrs

from ._cassette import Cassette
from ._options import ReplayOptions

_MAIN = "main"


@attrs.define(eq=False, weakref_slot=True)
class Seat:
    """The part of one session in a run.

    Attributes:
        number: From 1, in the order of opening.
    """

    run: Run
    number: int

    @property
    def mode(self) -> str:
        """How the file is to be read: what the first session records is not the end of the recording."""
        return "new" if self.run.records else self.run.mode

    def take(self, read: Cassette) -> Cassette:
        """The cassette of this session: what it has read, or the one in which the sessions before it record."""
        run = self.run
        with _lock:
            if not read.records and not run.records:
                return read  # every session counts for itself how often it was asked
            run.records = True
            if run.cassette is None:
                run.cassette = read
            return run.cassette

    def place(self, cassette: Cassette) -> str:
        """The session's place; a file with one session is replayed in each of several."""
        if self.number == 1 or (not cassette.records and cassette.main_places <= {_MAIN}):
            return _MAIN
        return f"{_MAIN}-{self.number}"

    def leave(self) -> None:
        """The session is closed, or was not opened; a second call does nothing."""
        with _lock:
            self.run.seats.discard(self)
            if not self.run.seats:
                self.run.cassette = None  # it is in the file


@attrs.define(eq=False)
class Run:
    """The sessions that share a file.

    Attributes:
        name: The option `run`.
        records: Whether one of them records; the later ones then do so, too, though the file exists.
        cassette: What they record; None while none of them is open.
        seats: The open ones. A session that is dropped without being closed disappears from it.
    """

    name: str | None
    mode: str
    opened: int = 0
    records: bool = False
    cassette: Cassette | None = None
    seats: WeakSet[Seat] = attrs.Factory(WeakSet)

    def takes(self, options: ReplayOptions) -> bool:
        """Whether a new session belongs to it."""
        if options.mode != self.mode:
            return False
        if options.run is not None and options.run == self.name:
            return True
        return bool(self.seats) and (options.run == self.name or self.records)


_lock = Lock()
_runs: dict[Path, Run] = {}
"""The latest run of each file; small, because a cassette is only in it while a session is open."""


def take_seat(path: Path, options: ReplayOptions) -> Seat:
    """Number a session that is being opened; `Seat.leave` must follow."""
    with _lock:
        run = _runs.get(path)
        if run is None or not run.takes(options):
            run = _runs[path] = Run(options.run, options.mode)
        run.opened += 1
        seat = Seat(run, run.opened)
        run.seats.add(seat)
        return seat
