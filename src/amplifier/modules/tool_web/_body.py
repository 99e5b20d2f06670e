"""A bounded body: decompressed piece by piece, never more than asked for, and decoded to text; pure."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from typing import Final

from .._tool_base import ToolFailure, shown

_PIECE = 1 << 16
_WINDOWS: Final = {"gzip": 47, "x-gzip": 47, "deflate": 47}
"""The accepted encodings, and zlib's number for "detect gzip or zlib"."""
_RAW_DEFLATE = -15
_GZIP_MAGIC = b"\x1f"

# Other codecs Python knows are no encodings of web pages, and some take quadratic time.
_ENCODINGS: Final = re.compile(
    r"(?i)utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-?8859-?\d{1,2}|(windows|cp)-?125\d|koi8-[ru]|macintosh"
    r"|shift[-_]?jis|sjis|euc-?(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|tis-620"
)
_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Body:
    """The body of a response, up to a limit.

    Args:
        encoding: The header Content-Encoding.
        limit: Bytes kept, after decompression.

    Attributes:
        is_full: There was more than that; the rest is not read.

    Raises:
        ToolFailure: The body is compressed in a way that was not asked for.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", *_WINDOWS):
            raise ToolFailure("UnsupportedContent", f"the body is compressed as {shown(encoding, 40)!r}, unasked")
        self._name = name
        self._inflater = zlib.decompressobj(_WINDOWS[name]) if name in _WINDOWS else None
        self._limit = limit
        self.data = bytearray()
        self.is_full = False

    def add(self, received: bytes) -> None:
        """Take the next bytes from the network.

        Raises:
            ToolFailure: They do not fit the header.
        """
        for piece in self._pieces(received):
            self.data += piece
            if len(self.data) > self._limit:
                del self.data[self._limit :]
                self.is_full = True
                return

    def _pieces(self, received: bytes) -> Iterator[bytes]:
        if self._inflater is None:
            yield received
            return
        while received:
            if self._inflater.eof and not self._begin_next_member(received):
                return
            try:
                piece = self._inflater.decompress(received, _PIECE)
            except zlib.error as error:
                if self._name != "deflate" or self.data:
                    raise ToolFailure("UnsupportedContent", f"the compressed body is damaged: {error}") from None
                # Half the world means this by deflate.
                self._name, self._inflater = "raw", zlib.decompressobj(_RAW_DEFLATE)
                continue
            received = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            yield piece

    def _begin_next_member(self, received: bytes) -> bool:
        """Go on with the next member of a gzip body (RFC 1952, 2.2); whether there is one.

        What follows the last member without being one is padding, which every decoder ignores.
        """
        if self._name not in ("gzip", "x-gzip") or received[:1] != _GZIP_MAGIC:
            return False
        self._inflater = zlib.decompressobj(_WINDOWS[self._name])
        return True

    def text(self, content_type: str) -> str:
        """The body as text; bytes that are none are replaced."""
        return self.data.decode(self._charset(content_type), "replace")

    def _charset(self, content_type: str) -> str:
        for mark, name in _BOMS:
            if self.data.startswith(mark):
                return name
        declared = content_type.lower().partition("charset=")[2].partition(";")[0].strip(" \t\"'")
        if not declared and (found := _DECLARED.search(self.data[:4096])):
            declared = found[1].decode("ascii")
        if _ENCODINGS.fullmatch(declared):
            # As browsers do: latin-1 means the superset.
            name = (
                "cp1252" if declared.lower() in ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii") else declared
            )
            try:
                return codecs.lookup(name).name
            except LookupError:
                pass
        return "utf-8"
