"""HTTP requests with httpx2, with deadlines for reading and a bounded close.

Importing this module imports the HTTP library, which is slow. Providers do it in a worker thread.
"""

# The body of a response is read with a plain iterator. So stopping early closes the connection at
# once, and no async generator is left to the garbage collector. Nothing is retried. Redirects are
# not followed, because the key would be sent to their target.

from __future__ import annotations

import functools
import json
import math
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import final

import anyio
import httpx2

from amplifier._internal.json import JSON
from amplifier.errors import (
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    StreamError,
)

from ._error_mapping import CallContext, error_from_status
from ._wire_format import read_json

MAX_ERROR_BYTES = 64 * 2**10
"""The limit on the body of an error response."""

MAX_BODY_BYTES = 256 * 2**20
"""The limit on the body of a response."""

_CLOSING_SECONDS = 5.0
_DRAINING_SECONDS = 0.2
_DRAINING_PIECES = 16


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates. Loading them is slow, so it happens once per process."""
    return httpx2.create_ssl_context()


async def _exhaust(iterator: AsyncIterator[bytes]) -> None:
    """Advance a closed iterator to its end.

    Otherwise nested generators would be left to the garbage collector.
    """
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
        while True:
            try:
                await anext(iterator)
            except Exception:  # noqa: BLE001 — a closed connection may raise anything
                return


@final
class Deadlines:
    """The deadlines of one call."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._end = math.inf if context.timeout is None else anyio.current_time() + context.timeout

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Bound one wait.

        Args:
            operation: The operation for error messages, such as "answering".

        Raises:
            LLMTimeoutError: A deadline passed.
        """
        context, idle = self._context, math.inf
        if context.idle_timeout is not None:
            idle = anyio.current_time() + context.idle_timeout
        with anyio.CancelScope(deadline=min(idle, self._end)) as scope:
            yield
        if scope.cancelled_caught:
            raise context.error(
                LLMTimeoutError,
                f"sent nothing for {context.idle_timeout:g} s while {operation} (idle_timeout)"
                if idle < self._end
                else f"did not finish within {context.timeout:g} s, still {operation} (timeout)",
            )


@final
class HttpResponse:
    """An HTTP response whose body is being read."""

    def __init__(
        self, response: httpx2.Response, deadlines: Deadlines, context: CallContext
    ) -> None:
        self._response = response
        self._deadlines = deadlines
        self._context = context
        self._chunks = aiter(response.aiter_bytes())
        self._left = MAX_BODY_BYTES

    @property
    def is_event_stream(self) -> bool:
        """True if the body is an event stream. Some servers respond with a JSON document."""
        kind: str = self._response.headers.get("content-type", "")
        return "json" not in kind.lower()

    async def receive(self) -> bytes | None:
        """Return the next bytes, or None at the end.

        Raises:
            LLMTimeoutError: A deadline passed.
            StreamError: The connection broke, or the body exceeds `MAX_BODY_BYTES`.
        """
        with _errors(self._context, StreamError), self._deadlines.waiting("answering"):
            try:
                chunk: bytes = await anext(self._chunks)
            except StopAsyncIteration:
                return None
        self._left -= len(chunk)
        if self._left < 0:
            raise self._context.error(
                StreamError, f"sent more than {MAX_BODY_BYTES} bytes", retryable=False
            )
        return chunk

    async def receive_json(self) -> JSON:
        """Return the whole body as JSON.

        Raises:
            StreamError: The body isn't JSON.
        """
        body = bytearray()
        while (chunk := await self.receive()) is not None:
            body += chunk
        try:
            return read_json(bytes(body))
        except ValueError as exc:
            start = self._context.clean(bytes(body[:200]).decode("utf-8", "replace"))
            phrase = f"sent a response that is not JSON: {start!r}"
            raise self._context.error(StreamError, phrase) from exc

    async def receive_error(self) -> LLMError:
        """Return the error for a response with an error status.

        If the connection breaks, the error describes the part of the body that arrived.
        """
        body = bytearray()
        try:
            while len(body) < MAX_ERROR_BYTES and (chunk := await self.receive()) is not None:
                body += chunk
        # The status is more useful than the error of a connection that broke afterwards.
        except LLMError:
            pass
        text = bytes(body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
        try:
            explanation: JSON = read_json(text)
        except ValueError:
            explanation = text
        return error_from_status(
            self._context, self._response.status_code, self._response.headers, explanation
        )

    async def drain(self) -> None:
        """Read the few bytes after a complete response, so that the connection can be reused."""
        with anyio.move_on_after(_DRAINING_SECONDS):
            try:
                for _ in range(_DRAINING_PIECES):
                    await anext(self._chunks)
            # This is usually the end of the body. Failures no longer matter.
            except Exception:  # noqa: BLE001
                return

    async def aclose(self) -> None:
        """Close the connection unless the body was read to its end.

        Closing is shielded from cancellation, and bounded in time.
        """
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
            try:
                await self._response.aclose()
            finally:
                await _exhaust(self._chunks)


@final
class HttpClient:
    """Sends requests to one service.

    Args:
        base_url: The address that paths are relative to.
        headers: The headers of every request.
        connect_timeout: Seconds to reach the server. The deadlines of a call bound everything else.
        keep_connections: Whether a connection serves several requests.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        connect_timeout: float,
        keep_connections: bool = True,
    ) -> None:
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            headers=headers,
            verify=_certificates(),
            timeout=httpx2.Timeout(None, connect=connect_timeout),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=100 if keep_connections else 0
            ),
        )

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: dict[str, JSON] | None, context: CallContext
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and wait for the headers of the response.

        Args:
            method: The HTTP method.
            path: The path relative to the base URL.
            body: The JSON to send.
            context: The deadlines, and the facts for error messages.

        Raises:
            LLMError: No response arrived, or its status is an error.
        """
        deadlines = Deadlines(context)
        request = self._client.build_request(
            method, path, content=_encoded(body), headers=_JSON if body else None
        )
        with _errors(context, NetworkError), deadlines.waiting("waiting for an answer"):
            response = await self._client.send(request, stream=True)
        opened = HttpResponse(response, deadlines, context)
        try:
            if not response.is_success:
                raise await opened.receive_error()
            yield opened
        finally:
            await opened.aclose()

    async def aclose(self) -> None:
        """Close the client and its idle connections in bounded time. Repeated calls are allowed."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
            await self._client.aclose()


_JSON = {"Content-Type": "application/json"}


def _encoded(body: dict[str, JSON] | None) -> bytes | None:
    try:
        return (
            None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(f"the request cannot be written as JSON: {exc}") from exc


@contextmanager
def _errors(context: CallContext, broken: type[LLMError]) -> Iterator[None]:
    """Map exceptions of the HTTP library to the error taxonomy.

    Args:
        context: The provider and model, for the error.
        broken: The class of the error to raise if the connection fails.
    """
    try:
        yield
    except httpx2.RequestError as exc:
        if isinstance(exc, httpx2.TimeoutException):
            error = context.error(LLMTimeoutError, "could not be reached in time (connect_timeout)")
        else:
            reason = f"{type(exc).__name__}: {context.clean(str(exc))}".rstrip(": ")
            phrase = "could not be reached" if broken is NetworkError else "broke the connection"
            error = context.error(broken, f"{phrase} ({reason})")
        if context.secret and context.secret in str(exc):
            raise error from None
        raise error from exc
