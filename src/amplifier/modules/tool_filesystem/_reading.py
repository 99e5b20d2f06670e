"""Reads an open file: a range of lines as text, or everything as bytes; bounded, and able to stop.

Blocking; runs in a worker thread.
"""

from __future__ import annotations

import codecs
import os

import attrs

from .._tool_base import Stop, ToolFailure

CHUNK = 1 << 16
_SNIFFED = 8192
_MAX_SCANNED = 64 << 20

IMAGE_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def media_type(head: bytes) -> str | None:
    """The media type of an image a model can look at, by its first bytes; None for everything else."""
    for magic, kind in IMAGE_TYPES:
        if head.startswith(magic):
            return kind
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is not text; what is judged is a NUL among its first bytes."""
    return b"\0" in head[:_SNIFFED]


@attrs.define
class Lines:
    """A range of lines of a file.

    Attributes:
        first: The number of the first line wanted, from 1.
        limit: How many lines are wanted.
        max_bytes: How many bytes may be kept.
        data: The bytes of the lines.
        taken: Lines begun in `data`.
        total: Lines in the whole file; None if its end was not reached.
        scanned: Bytes read from the file.
        is_cut: Whether `data` ends within a line because of `max_bytes`.
    """

    first: int
    limit: int
    max_bytes: int
    data: bytearray = attrs.field(factory=bytearray)
    taken: int = 0
    total: int | None = None
    scanned: int = 0
    is_cut: bool = False
    _line: int = 1
    _ends_with_newline: bool = True

    def read(self, file: int, head: bytes, stop: Stop) -> None:
        """Read from a file whose first bytes were read already."""
        chunk = head
        while chunk:
            stop.check()
            self.scanned += len(chunk)
            self._ends_with_newline = chunk.endswith(b"\n")
            self._take(chunk)
            if self.scanned >= _MAX_SCANNED:
                return
            chunk = os.read(file, CHUNK)
        self.total = self._line - 1 if self._ends_with_newline else self._line

    def _take(self, chunk: bytes) -> None:
        """Keep what belongs to the range; count the rest."""
        start = self._skip(chunk)
        if start < len(chunk) and not self._is_full():
            end = start
            while end < len(chunk) and self._line < self.first + self.limit:
                newline = chunk.find(b"\n", end)
                end = len(chunk) if newline < 0 else newline + 1
                self._line += newline >= 0
            self._keep(chunk[start:end])
            start = end
        self._line += chunk.count(b"\n", start)

    def _skip(self, chunk: bytes) -> int:
        """Where in the chunk the range begins or goes on; its end, if it does not."""
        position = 0
        missing = self.first - self._line
        if missing > 0 and chunk.count(b"\n") < missing:
            self._line += chunk.count(b"\n")
            return len(chunk)
        for _ in range(missing):
            position = chunk.index(b"\n", position) + 1
            self._line += 1
        return position

    def _is_full(self) -> bool:
        return self.is_cut or self._line >= self.first + self.limit

    def _keep(self, piece: bytes) -> None:
        free = self.max_bytes - len(self.data)
        self.is_cut = len(piece) > free
        self.data += piece[:free]

    def text(self) -> tuple[str, bool]:
        """The lines as text, and whether bytes that are no UTF-8 were replaced; half a character at a cut is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(bytes(self.data), final=not self.is_cut)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(bytes(self.data), final=not self.is_cut)
        except UnicodeDecodeError:
            return text, True
        return text, False


def read_all(file: int, *, max_bytes: int, stop: Stop, subject: str) -> bytes:
    """Everything in a file.

    Raises:
        ToolFailure: It is larger than allowed.
    """
    data = bytearray()
    while chunk := os.read(file, CHUNK):
        stop.check()
        data += chunk
        if len(data) > max_bytes:
            raise ToolFailure("TooLarge", f"{subject}: larger than the {max_bytes} bytes this tool may read at once")
    return bytes(data)
