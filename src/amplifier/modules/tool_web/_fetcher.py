"""Fetches one URL, following redirects, to a bounded body.

Each hop is read, resolved and checked on its own, and then connected to exactly the address that was checked, while the Host
header, the name in the TLS handshake and the certificate check keep the host's name. So a name server that answers
differently a moment later changes nothing. Nothing else is sent: no cookies, no credentials, no proxies
from the environment.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import anyio
import attrs

from .._tool_base import ToolFailure, shown
from ._body import Body
from ._http_exchange import Dial, Exchange, dial, open_exchange
from ._options import WebOptions
from ._public_addresses import Address, read_address
from ._urls import Policy, Target, read_url

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
    """Fetches URLs within a policy.

    Args:
        policy: Which hosts and addresses it may reach.
        options: Its limits.
        context: Verifies certificates.
        resolver: Resolves names.
        dial: Connects to addresses.
    """

    def __init__(
        self,
        policy: Policy,
        options: WebOptions,
        context: ssl.SSLContext,
        *,
        resolver: Resolver = resolve,
        dial: Dial = dial,
    ) -> None:
        self._policy = policy
        self._options = options
        self._context = context
        self._resolve = resolver
        self._dial = dial

    async def fetch(self, url: str) -> Fetched:
        """Fetch a URL with GET.

        Raises:
            ToolFailure: It may not or cannot be fetched. A status that means failure is no failure here.
        """
        with anyio.move_on_after(self._options.timeout):
            return await self._follow(url)
        # The block above returns, raises, or was cut off by its own deadline.
        raise ToolFailure("Timeout", f"{shown(ascii(url), 200)}: not finished after {self._options.timeout:g} s")

    async def _follow(self, url: str) -> Fetched:
        target = read_url(url)
        hops: list[str] = []
        while True:
            answer = await self._hop(target, tuple(hops))
            if isinstance(answer, Fetched):
                return answer
            if len(hops) == self._options.max_redirects:
                raise ToolFailure("TooManyRedirects", f"more than {len(hops)} redirects, the last to {shown(answer)}")
            hops.append(target.url)
            target = read_url(answer, base=target.url)

    async def _hop(self, target: Target, hops: tuple[str, ...]) -> Fetched | str:
        """One request, to the first address that can be reached: what came back, or where to go next."""
        self._policy.check_place(target)
        addresses = [target.literal] if target.literal is not None else await self._addresses(target)
        self._policy.check_addresses(target, addresses)
        # A silent address must leave time for the next one.
        share = self._options.timeout / len(addresses)
        for address in addresses:
            with anyio.move_on_after(share if address is not addresses[-1] else None):
                try:
                    async with open_exchange(target, str(address), self._context, self._dial) as exchange:
                        return await self._read(exchange, target, hops)
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    if address is addresses[-1] or isinstance(error, ssl.SSLError):
                        raise _failure(target, error) from None
        raise ToolFailure("ConnectionFailed", f"{shown(target.host)}: no answer")

    async def _addresses(self, target: Target) -> list[Address]:
        found = [read_address(text) for text in await self._resolve(target.host, target.port)]
        addresses = [address for address in dict.fromkeys(found) if address is not None]
        if not addresses or None in found:
            raise ToolFailure("ForbiddenAddress", f"{shown(target.host)} leads to no address that can be used")
        # All of them are judged, even those that will not be tried.
        self._policy.check_addresses(target, addresses)
        return addresses[:_MOST_ADDRESSES]

    async def _read(self, exchange: Exchange, target: Target, hops: tuple[str, ...]) -> Fetched | str:
        asked = {
            "Host": target.authority,
            "User-Agent": self._options.user_agent,
            "Accept": _ACCEPT,
            "Accept-Encoding": "gzip, deflate",
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
        return Fetched(url=target.url, status=status, hops=hops, content_type=content_type[:200], body=body)


def is_textual(content_type: str) -> bool:
    """Whether a body is worth reading; without a type, it is looked at."""
    name = content_type.partition(";")[0].strip().lower()
    kind, _, form = name.partition("/")
    return (
        kind in ("", "text")
        or form.endswith(("json", "xml", "javascript", "ecmascript", "yaml", "toml"))
        or name in ("application/x-sh", "application/sql", "application/graphql", "application/octet-stream")
    )


def _failure(target: Target, error: Exception) -> ToolFailure:
    cause = error.__cause__ if isinstance(error, anyio.BrokenResourceError) and error.__cause__ else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ToolFailure("CertificateError", f"{shown(target.host)}: {shown(cause.verify_message, 200)}")
    words = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
    return ToolFailure("ConnectionFailed", f"{shown(target.host)}: {shown(words, 200)}")
