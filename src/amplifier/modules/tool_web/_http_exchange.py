"""One GET request over a connection of its own, which is closed afterwards.

The protocol is h11's, which does no input or output; the stream is AnyIO's. A client library would be shorter, but those
looked at leave sockets open when they are cancelled during a TLS handshake, and this module may leave nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from .._tool_base import ToolFailure, shown
from ._urls import Target

_CHUNK = 1 << 16
_MOST_HEADERS = 1 << 16

Dial: TypeAlias = Callable[[str, int], Awaitable[ByteStream]]
"""Connects to an address and port."""


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
                raise ToolFailure("ConnectionFailed", f"{self._host}: the connection ended before an answer came")

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
                raise ToolFailure("ConnectionFailed", f"{self._host}: no proper answer: {words}") from None
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                data = b""
            self._machine.receive_data(data)


@asynccontextmanager
async def open_exchange(target: Target, address: str, context: ssl.SSLContext, dial: Dial) -> AsyncIterator[Exchange]:
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
                raw, hostname=target.host, ssl_context=context, server_side=False, standard_compatible=False
            )
        yield Exchange(stream, shown(target.host))
    finally:
        # Closed without a TLS shutdown: nothing is left to send, and a silent peer must not delay the call.
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(raw)
