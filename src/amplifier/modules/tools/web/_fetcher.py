"""Fetch one URL with a bounded body, connecting only to checked addresses."""

from __future__ import annotations

import codecs
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio
import attrs
import httpcore2
import httpx2

from ..._shared.failure import ToolFailure, shown
from ._urls import Address, WebOptions, check_addresses, check_place, read_address, read_url

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function from a host and a port to addresses."""

_MAX_ADDRESSES = 4
_ACCEPT = "text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.1"


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as the system resolves it.

    Raises:
        ToolFailure: The name has no address.
    """
    try:
        entries = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailure("NotFound", f"{shown(host)}: no such host is known") from None
    return [str(entry[4][0]) for entry in entries]


# All connections of the client go through `connect_tcp`, including those for redirects. So the
# check can't be evaded by a URL that one parser reads differently from another, or by a name server
# that answers differently a moment later. The client still uses the name for the Host header, the
# TLS handshake and the certificate.
class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that the options allow.

    Args:
        options: The allowed hosts, ports and addresses.
        resolver: Resolves names.
        network: Connects to addresses.
    """

    def __init__(
        self,
        options: WebOptions,
        resolver: Resolver,
        network: httpcore2.AsyncNetworkBackend,
    ) -> None:
        self._options = options
        self._resolve = resolver
        self._network = network
        self._streams: list[httpcore2.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of a host that can be reached.

        Raises:
            ToolFailure: The host, its port or one of its addresses is forbidden.
        """
        check_place(host, port, self._options)
        addresses = await self._addresses(host, port)
        # This checks all addresses, even those that won't be tried.
        check_addresses(host, port, addresses, self._options)
        *others, last = addresses[:_MAX_ADDRESSES]
        for address in others:
            # An address that doesn't answer must leave time for the next one.
            share = self._options.timeout / (len(others) + 1)
            try:
                return self._keep(await self._network.connect_tcp(str(address), port, share))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return self._keep(await self._network.connect_tcp(str(last), port))

    async def aclose(self) -> None:
        """Close every connection.

        The pool loses a connection that is cancelled during its TLS handshake.
        """
        with anyio.CancelScope(shield=True):
            for stream in self._streams:
                await stream.aclose()

    def _keep(self, stream: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
        self._streams.append(stream)
        return stream

    async def _addresses(self, host: str, port: int) -> list[Address]:
        literal = read_address(host)
        if literal is not None:
            return [literal]
        entries = [read_address(text) for text in await self._resolve(host, port)]
        addresses = [address for address in dict.fromkeys(entries) if address is not None]
        if not addresses or None in entries:
            raise ToolFailure(
                "ForbiddenAddress", f"{shown(host)} leads to no address that can be used"
            )
        return addresses


class _Body(httpx2.AsyncByteStream):
    """The body of a response, in the form that the client expects."""

    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        # This is the pool's own iterator. A generator around it would leave it unclosed.
        return aiter(self._response.aiter_stream())

    async def aclose(self) -> None:
        await self._response.aclose()


class _Transport(httpx2.AsyncBaseTransport):
    """Sends every request of the client over a new connection."""

    def __init__(self, network: CheckedNetwork, context: ssl.SSLContext) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, network_backend=network, max_keepalive_connections=0
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        core_request = httpcore2.Request(
            request.method,
            httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _failures(url):
            core_response = await self._pool.handle_async_request(core_request)
        response = httpx2.Response(
            core_response.status, headers=core_response.headers, stream=_Body(core_response)
        )
        if not response.has_redirect_location:
            return response
        # The client itself would read the whole body, keep the cookies, and be less strict about
        # URLs.
        await response.aclose()
        location = read_url(response.headers["Location"], base=str(url))
        return httpx2.Response(core_response.status, headers={"Location": location})

    async def aclose(self) -> None:
        await self._pool.aclose()


@attrs.frozen(kw_only=True)
class Fetched:
    """The response to the last request.

    Attributes:
        url: The URL of that request.
        status: Its HTTP status.
        hops: The URLs that redirected to it.
        content_type: The header Content-Type.
        body: The body without its compression. None if it is not text, and was not read.
        is_full: True if the body was longer than the limit, and the rest was not read.
    """

    url: str
    status: int
    hops: tuple[str, ...]
    content_type: str
    body: bytes | None
    is_full: bool

    def text(self) -> str:
        """Decode the body according to its BOM, the header or its own declaration."""
        assert self.body is not None
        return self.body.decode(_charset(self.body, self.content_type), "replace")


class Fetcher:
    """Fetches URLs.

    Nothing but the request is sent: no cookies, no credentials, no proxies from the environment.

    Args:
        options: The allowed hosts and addresses, and the limits.
        context: Verifies certificates.
        resolver: Resolves names.
        network: Connects to addresses. AnyIO by default.
    """

    def __init__(
        self,
        options: WebOptions,
        context: ssl.SSLContext,
        *,
        resolver: Resolver = resolve,
        network: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._options = options
        self._context = context
        self._resolve = resolver
        self._network = network or httpcore2.AnyIOBackend()

    async def fetch(self, url: str) -> Fetched:
        """Fetch a URL with GET. A status that means failure is returned like any other.

        Raises:
            ToolFailure: Fetching it is not allowed, or failed.
        """
        url = read_url(url)
        with anyio.move_on_after(self._options.timeout):
            try:
                async with self._client() as client, client.stream("GET", url) as response:
                    return await self._read(response)
            except httpx2.TooManyRedirects as error:
                raise ToolFailure(
                    "TooManyRedirects",
                    f"more than {self._options.max_redirects} redirects, "
                    f"the last to {shown(str(error.request.url))}",
                ) from None
            except httpx2.DecodingError as error:
                raise ToolFailure(
                    "UnsupportedContent", f"the compressed body is damaged: {shown(str(error))}"
                ) from None
            except httpx2.InvalidURL as error:
                raise ToolFailure("InvalidURL", shown(str(error), 200)) from None
        # The block above returns, raises, or is cancelled at its own deadline.
        raise ToolFailure(
            "Timeout", f"{shown(url, 200)}: timed out after {self._options.timeout:g} s"
        )

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx2.AsyncClient]:
        network = CheckedNetwork(self._options, self._resolve, self._network)
        try:
            async with httpx2.AsyncClient(
                transport=_Transport(network, self._context),
                headers={
                    "User-Agent": self._options.user_agent,
                    "Accept": _ACCEPT,
                    "Accept-Encoding": "gzip",
                    "Connection": "close",
                },
                # One deadline bounds the whole fetch.
                timeout=None,
                follow_redirects=True,
                max_redirects=self._options.max_redirects,
                trust_env=False,
            ) as client:
                yield client
        finally:
            await network.aclose()

    async def _read(self, response: httpx2.Response) -> Fetched:
        content_type = response.headers.get("Content-Type", "")
        body = bytearray()
        if is_text := is_textual(content_type):
            coding = response.headers.get("Content-Encoding", "").strip().lower()
            if coding not in ("", "identity", "gzip", "x-gzip"):
                raise ToolFailure(
                    "UnsupportedContent",
                    f"the body is compressed as {shown(coding, 40)!r}, unasked",
                )
            response.headers["Content-Encoding"] = coding.removeprefix("x-")
            with _failures(response.url):
                async with aclosing(response.aiter_bytes()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > self._options.max_bytes:
                            break
        return Fetched(
            url=str(response.url),
            status=response.status_code,
            hops=tuple(str(hop.url) for hop in response.history),
            content_type=content_type[:200],
            body=bytes(body[: self._options.max_bytes]) if is_text else None,
            is_full=len(body) > self._options.max_bytes,
        )


def is_textual(content_type: str) -> bool:
    """Return whether a content type is that of text. A missing content type counts as text."""
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


@contextmanager
def _failures(url: httpx2.URL) -> Iterator[None]:
    """Turn the errors of a connection into those of the tool."""
    host = shown(url.raw_host.decode("ascii"))
    try:
        yield
    except (
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.TimeoutException,
    ) as error:
        cause: BaseException = error
        # The pool clears the cause of its error, but not the context.
        while not isinstance(cause, ssl.SSLError) and (below := cause.__context__) is not None:
            cause = below
        if isinstance(cause, ssl.SSLCertVerificationError):
            kind, reason = "CertificateError", cause.verify_message
        else:
            kind = "ConnectionFailed"
            reason = (isinstance(cause, OSError) and cause.strerror) or str(cause)
        text = shown(reason or type(cause).__name__, 200)
        raise ToolFailure(kind, f"{host}: {text}") from None


# Other codecs of Python aren't encodings of web pages, and some take quadratic time.
_ENCODINGS: Final = re.compile(
    r"(?i)utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-?8859-?\d{1,2}|(windows|cp)-?125\d"
    r"|koi8-[ru]|macintosh|shift[-_]?jis|sjis|euc-?(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5"
    r"|tis-620"
)
_DECLARED = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE
)
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _charset(body: bytes, content_type: str) -> str:
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name
    declared = content_type.lower().partition("charset=")[2].partition(";")[0].strip(" \t\"'")
    if not declared and (match := _DECLARED.search(body[:4096])):
        declared = match[1].decode("ascii").lower()
    # Browsers read Latin-1 as its superset.
    if declared in ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii"):
        return "cp1252"
    if _ENCODINGS.fullmatch(declared):
        try:
            return codecs.lookup(declared).name
        except LookupError:
            pass
    return "utf-8"
