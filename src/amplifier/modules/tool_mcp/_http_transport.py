"""Messages over streamable HTTP. Redirects to other hosts are not followed: headers and tokens are for the configured one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from ._options import ServerOptions

_CONNECTING = 30.0


class HttpTransport:
    """The transport of one remote server.

    Args:
        options: The server's.
        max_bytes: Of one message.
        on_lost: Called once when no more messages will come.
        auth: Adds credentials to requests.

    Attributes:
        pid: Always None.
    """

    pid = None

    def __init__(
        self, options: ServerOptions, *, max_bytes: int, on_lost: Callable[[], None], auth: httpx2.Auth | None = None
    ) -> None:
        self._options = options
        self._max_bytes = max_bytes
        self._on_lost = on_lost
        self._auth = auth
        self._refusal: str | None = None

    def how_it_ended(self) -> str:
        """Why the connection was lost, for messages."""
        return self._refusal or "closed the connection"

    @property
    def hint(self) -> str:
        """What the server answered last instead of a result, as an addition to a message."""
        return "" if self._refusal is None else f"; it {self._refusal}"

    async def _note_refusal(self, response: httpx2.Response) -> None:
        status = response.status_code
        self._refusal = None
        if status >= 400:
            advice = {
                401: "check the headers in the plan, or set oauth: true",
                403: "the credentials in the plan are not enough",
                404: "is the path of the url right?",
            }.get(status)
            answer = (
                f"answered HTTP {status} {response.reason_phrase}".rstrip()
            )  # HTTP/2 and some servers have no phrase
            self._refusal = answer + (f"; {advice}" if advice else "")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Open the connection; leaving it ends the session on the server."""
        assert self._options.url is not None
        # A call may take as long as its own deadline allows, so reading has none.
        timeout = httpx2.Timeout(_CONNECTING, read=None)
        async with (
            httpx2.AsyncClient(
                headers=dict(self._options.headers),
                timeout=timeout,
                auth=self._auth,
                event_hooks={"response": [self._note_refusal]},
            ) as client,
            streamable_http_client(
                self._options.url, http_client=client, max_sse_event_size=self._max_bytes
            ) as streams,
        ):
            try:
                yield streams
            finally:
                self._on_lost()
