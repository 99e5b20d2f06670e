"""Finds damage in a write-ahead log that SQLite would take for its end.

SQLite reads the log up to the first frame whose checksum is wrong: that is what a crash leaves of a transaction that was being written. But only
one transaction at a time is written and not yet synced. Where two or more are complete behind a wrong frame, at least one of them had been
acknowledged, and would be lost without a word.

The format is https://www.sqlite.org/fileformat2.html#the_write_ahead_log: a header of 32 bytes, then frames of a header of 24 bytes and a page.
"""

from __future__ import annotations

import struct
from pathlib import Path

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
        lost, beginning = again  # another process writes it: a part of it may have been read before, another part after
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
        order, size, salts = None, size if size in _PAGE_SIZES else 4096, data[_HEADER + 8 : _HEADER + 16]
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
