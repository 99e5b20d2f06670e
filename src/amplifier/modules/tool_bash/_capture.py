"""A bounded part of a stream: its beginning and its end. What is between is counted and dropped."""

from __future__ import annotations

import codecs

_NUL_SHOWN = "\N{SYMBOL FOR NULL}"


class Capture:
    """Keeps the first and the last bytes of a stream, half of `limit` each.

    Args:
        limit: Bytes kept; while a stream runs, up to half as many again are held.

    Attributes:
        total: Bytes seen.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._for_head = limit - limit // 2
        self._for_tail = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        free = self._for_head - len(self._head)
        self._head += data[:free]
        self._tail += data[free:]
        # Cut only now and then, so that a stream of small pieces does not move the tail for each.
        if len(self._tail) > 2 * self._for_tail:
            del self._tail[: len(self._tail) - self._for_tail]

    @property
    def is_cut(self) -> bool:
        """Whether anything was dropped."""
        return self.total > self._limit

    def text(self) -> str:
        r"""What was kept, as text for JSON; a byte that is no UTF-8 as ``\xff``, NUL as the symbol for it."""
        if not self.is_cut:
            return _decoded(self._head + self._tail)
        head, tail = _without_half_end(self._head), _without_half_start(self._tail[len(self._tail) - self._for_tail :])
        dropped = self.total - len(head) - len(tail)
        return f"{_decoded(head)}\n[… {dropped} bytes dropped …]\n{_decoded(tail)}"


def _decoded(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\0", _NUL_SHOWN)


def _without_half_end(data: bytearray) -> bytearray:
    """Without the beginning of a character whose rest was dropped."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    half = decoder.getstate()[0]
    return data[: len(data) - len(half)]


def _without_half_start(data: bytearray) -> bytearray:
    """Without the end of a character whose beginning was dropped: at most three bytes of the form 10xxxxxx."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
