"""Fetches one URL, following redirects, to a bounded body.

Each hop is read, resolved and checked on its own, and then connected to exactly the address that was checked, while the Host
header, the name in the TLS handshake and the certificate check keep the host's name. So a name server that answers
differently a moment later changes nothing. Nothing else is sent: no cookies, no credentials, no proxies
from the environment.
"""

from __future__ import annotations

import codecs
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import anyio
import attrs
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from ..._shared.failure import ToolFailure, shown
from ._urls import Address, Target, WebOptions, check_addresses, check_place, read_address, read_url

_CHUNK = 1 << 16
_MOST_HEADERS = 1 << 16

Dial: TypeAlias = Callable[[str, int], Awaitable[ByteStream]]
"""Connects to an address and port."""


# ── http exchange ─────────────────────────────────────────────────────────────────────────────────
# One GET request over a connection of its own, which is closed afterwards.
#
# The protocol is h11's, which does no input or output; the stream is AnyIO's. A client library would be shorter, but
# those looked at leave sockets open when they are cancelled during a TLS handshake, and this module may leave
# nothing.


async def dial(address: str, port: int) -> ByteStream:
    """Connect; the address is one, so no name is looked up any more."""
    return await anyio.connect_tcp(address, port)


class Exchange:
    """One request and its response.

    Args:
        stream: Connected, and closed by its owner.
        host: For messages.
    """

    def __init__(self, stream: ByteStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEADERS)

    async def ask(self, target: Target, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Send the request and wait for the answer's head.

        Returns:
            The status, and the headers by name in lower case; of several of one name the first.

        Raises:
            ToolFailure: What came back is no answer.
        """
        request = h11.Request(method="GET", target=target.path, headers=list(headers.items()))
        data = self._machine.send(request) or b""
        await self._stream.send(data + (self._machine.send(h11.EndOfMessage()) or b""))
        while True:
            event = await self._next_event()
            if type(event) is h11.Response:
                found: dict[str, str] = {}
                for name, value in event.headers:
                    found.setdefault(name.decode("ascii"), value.decode("latin-1"))
                return event.status_code, found
            if type(event) is not h11.InformationalResponse:
                raise ToolFailure(
                    "ConnectionFailed", f"{self._host}: the connection ended before an answer came"
                )

    async def next_chunk(self) -> bytes | None:
        """The next part of the answer's body; None at its end.

        Raises:
            ToolFailure: The connection broke before.
        """
        event = await self._next_event()
        return bytes(event.data) if type(event) is h11.Data else None

    async def _next_event(self) -> Any:
        while True:
            try:
                event = self._machine.next_event()
            except h11.RemoteProtocolError as error:
                words = shown(str(error), 200)
                raise ToolFailure(
                    "ConnectionFailed", f"{self._host}: no proper answer: {words}"
                ) from None
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                data = b""
            self._machine.receive_data(data)


@asynccontextmanager
async def open_exchange(
    target: Target, address: str, context: ssl.SSLContext, dial: Dial
) -> AsyncIterator[Exchange]:
    """Connect to an address in the name of a host.

    The certificate is checked against the host's name, and the handshake carries the name.

    Raises:
        OSError: The address cannot be reached, or the certificate is wrong.
    """
    raw = await dial(address, target.port)
    stream = raw
    try:
        if target.is_secure:
            stream = await TLSStream.wrap(
                raw,
                hostname=target.host,
                ssl_context=context,
                server_side=False,
                standard_compatible=False,
            )
        yield Exchange(stream, shown(target.host))
    finally:
        # Closed without a TLS shutdown: nothing is left to send, and a silent peer must not delay the call.
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(raw)


_GZIP: Final = 31
"""zlib's number for a body with the header of gzip."""
_GZIP_MAGIC = b"\x1f"

# Other codecs Python knows are no encodings of web pages, and some take quadratic time.
_ENCODINGS: Final = re.compile(
    r"(?i)utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-?8859-?\d{1,2}|(windows|cp)-?125\d|koi8-[ru]|macintosh"
    r"|shift[-_]?jis|sjis|euc-?(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|tis-620"
)
_DECLARED = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE
)
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


# ── body ──────────────────────────────────────────────────────────────────────────────────────────
# A bounded body: decompressed piece by piece, never more than asked for, and decoded to text; pure.


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
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise ToolFailure(
                "UnsupportedContent", f"the body is compressed as {shown(encoding, 40)!r}, unasked"
            )
        self._inflater = zlib.decompressobj(_GZIP) if name.endswith("gzip") else None
        self._limit = limit
        self.data = bytearray()
        self.is_full = False

    def add(self, received: bytes) -> None:
        """Take the next bytes from the network.

        Raises:
            ToolFailure: They are not compressed as the header has it.
        """
        while received and not self.is_full:
            if self._inflater is None:
                piece, received = received, b""
            else:
                if self._inflater.eof:  # then comes another member (RFC 1952, 2.2), or padding, which every decoder ignores
                    if not received.startswith(_GZIP_MAGIC):
                        return
                    self._inflater = zlib.decompressobj(_GZIP)
                try:
                    piece = self._inflater.decompress(received, _CHUNK)
                except zlib.error as error:
                    raise ToolFailure(
                        "UnsupportedContent", f"the compressed body is damaged: {error}"
                    ) from None
                received = (
                    self._inflater.unused_data
                    if self._inflater.eof
                    else self._inflater.unconsumed_tail
                )
            self.data += piece
            if len(self.data) > self._limit:
                del self.data[self._limit :]
                self.is_full = True

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
                "cp1252"
                if declared.lower() in ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii")
                else declared
            )
            try:
                return codecs.lookup(name).name
            except LookupError:
                pass
        return "utf-8"


Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""From host and port to addresses."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_ADDRESSES = 4
_ACCEPT = "text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.1"


@attrs.frozen(kw_only=True)
class Fetched:
    """The response to the last request.

    Attributes:
        hops: The URLs on the way there, without the last.
        content_type: As the server wrote it.
        body: None if it is neither text nor anything like it, and was not read.
    """

    url: str
    status: int
    hops: tuple[str, ...]
    content_type: str
    body: Body | None


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for a name's addresses.

    Raises:
        ToolFailure: It has none.
    """
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailure("NotFound", f"{shown(host)}: no such host is known") from None
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """Fetches URLs.

    Args:
        options: Which hosts and addresses it may reach, and its limits.
        context: Verifies certificates.
        resolver: Resolves names.
        dial: Connects to addresses.
    """

    def __init__(
        self,
        options: WebOptions,
        context: ssl.SSLContext,
        *,
        resolver: Resolver = resolve,
        dial: Dial = dial,
    ) -> None:
        self._options = options
        self._context = context
        self._resolve = resolver
        self._dial = dial

    async def fetch(self, url: str) -> Fetched:
        """Fetch a URL with GET.

        Raises:
            ToolFailure: It may not or cannot be fetched. A status that means failure is no failure here.
        """
        target = read_url(url)
        hops: list[str] = []
        with anyio.move_on_after(self._options.timeout):
            while True:
                answer = await self._hop(target, tuple(hops))
                if isinstance(answer, Fetched):
                    return answer
                if len(hops) == self._options.max_redirects:
                    raise ToolFailure(
                        "TooManyRedirects",
                        f"more than {len(hops)} redirects, the last to {shown(answer)}",
                    )
                hops.append(target.url)
                target = read_url(answer, base=target.url)
        # The block above returns, raises, or was cut off by its own deadline.
        raise ToolFailure(
            "Timeout", f"{shown(ascii(url), 200)}: not finished after {self._options.timeout:g} s"
        )

    async def _hop(self, target: Target, hops: tuple[str, ...]) -> Fetched | str:
        """One request, to the first address that can be reached: what came back, or where to go next."""
        check_place(target, self._options)
        addresses = (
            [target.literal] if target.literal is not None else await self._addresses(target)
        )
        check_addresses(
            target, addresses, self._options
        )  # all of them, even those that will not be tried
        addresses = addresses[:_MOST_ADDRESSES]
        # A silent address must leave time for the next one.
        share = self._options.timeout / len(addresses)
        for address in addresses:
            with anyio.move_on_after(share if address is not addresses[-1] else None):
                try:
                    async with open_exchange(
                        target, str(address), self._context, self._dial
                    ) as exchange:
                        return await self._read(exchange, target, hops)
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    if address is addresses[-1] or isinstance(error, ssl.SSLError):
                        raise _failure(target, error) from None
        raise ToolFailure("ConnectionFailed", f"{shown(target.host)}: no answer")

    async def _addresses(self, target: Target) -> list[Address]:
        found = [read_address(text) for text in await self._resolve(target.host, target.port)]
        addresses = [address for address in dict.fromkeys(found) if address is not None]
        if not addresses or None in found:
            raise ToolFailure(
                "ForbiddenAddress", f"{shown(target.host)} leads to no address that can be used"
            )
        return addresses

    async def _read(
        self, exchange: Exchange, target: Target, hops: tuple[str, ...]
    ) -> Fetched | str:
        asked = {
            "Host": target.authority,
            "User-Agent": self._options.user_agent,
            "Accept": _ACCEPT,
            "Accept-Encoding": "gzip",
            "Connection": "close",
        }
        status, headers = await exchange.ask(target, asked)
        if status in _REDIRECTS and (location := headers.get("location")):
            return location
        content_type = headers.get("content-type", "")
        body: Body | None = None
        if is_textual(content_type):
            body = Body(headers.get("content-encoding", ""), self._options.max_bytes)
            while not body.is_full and (chunk := await exchange.next_chunk()) is not None:
                body.add(chunk)
        return Fetched(
            url=target.url, status=status, hops=hops, content_type=content_type[:200], body=body
        )


def is_textual(content_type: str) -> bool:
    """Whether a body is worth reading; without a type, it is looked at."""
    name = content_type.partition(";")[0].strip().lower()
    kind, _, form = name.partition("/")
    return (
        kind in ("", "text")
        or form.endswith(("json", "xml", "javascript", "ecmascript", "yaml", "toml"))
        or name
        in (
            "application/x-sh",
            "application/sql",
            "application/graphql",
            "application/octet-stream",
        )
    )


def _failure(target: Target, error: Exception) -> ToolFailure:
    cause = (
        error.__cause__
        if isinstance(error, anyio.BrokenResourceError) and error.__cause__
        else error
    )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ToolFailure(
            "CertificateError", f"{shown(target.host)}: {shown(cause.verify_message, 200)}"
        )
    words = (
        (cause.strerror if isinstance(cause, OSError) else None)
        or str(cause)
        or type(cause).__name__
    )
    return ToolFailure("ConnectionFailed", f"{shown(target.host)}: {shown(words, 200)}")
