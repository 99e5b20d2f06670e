"""HTTP requests through an official SDK, with deadlines for reading and a bounded close.

The SDK handles URLs, authentication, headers, proxies and status errors. This module reads the body of a response with a
plain iterator, so that leaving it early closes the connection at once and leaves no async generator to the garbage
collector. SDK retries are off.
"""

from __future__ import annotations

import functools
import importlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, final

import anyio
import attrs

from amplifier.errors import (
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    MissingExtraError,
    NetworkError,
    StreamError,
)

from .error_mapping import ErrorContext, error_from_status
from .options import ProviderOptions
from .server_sent_events import read_json

MAX_ERROR_BYTES = 64 * 2**10
"""The limit on the body of an error response."""

MAX_BODY_BYTES = 256 * 2**20
"""The limit on the body of a response."""

_CLOSING_SECONDS = 5.0
_DRAINING_SECONDS = 0.2
_DRAINING_PIECES = 16


@attrs.frozen
class Sdk:
    """An imported official SDK.

    Attributes:
        module: The package; both have the same error classes, ``Timeout`` and ``DefaultAsyncHttpxClient``.
        http: The HTTP library it uses.
    """

    module: Any
    http: Any


def import_sdk(package: str, *, feature: str, extra: str) -> Sdk:
    """Import an SDK; blocks for a second or two, so call it in a worker thread.

    Raises:
        MissingExtraError: The SDK is not installed.
    """
    try:
        return Sdk(importlib.import_module(package), importlib.import_module("httpx2"))
    except ImportError as exc:
        raise MissingExtraError(feature, extra=extra, missing=exc.name or package) from exc


def client_options(sdk: Sdk, options: ProviderOptions) -> dict[str, Any]:
    """The arguments for the clients of both SDKs."""
    timeout = sdk.module.Timeout(None, connect=options.connect_timeout)  # `Deadlines` bounds everything else
    return {
        "api_key": options.api_key,
        "base_url": options.base_url,
        "max_retries": 0,
        "timeout": timeout,
        "default_headers": dict(options.extra_headers) or None,
        # After a redirect the HTTP library would forward the key, because it does not know its header.
        "http_client": sdk.module.DefaultAsyncHttpxClient(
            verify=_certificates(sdk.http),
            timeout=timeout,
            follow_redirects=False,
            event_hooks={"response": [_error_shortener(sdk.http)]},
        ),
    }


@functools.cache
def _certificates(http: Any) -> ssl.SSLContext:
    """Trusted certificates; loaded once per process, because loading is slow."""
    context: ssl.SSLContext = http.create_ssl_context()
    return context


def set_platform(client: Any) -> None:
    """Set the client's platform; otherwise the first call starts a thread to find it, which never ends."""
    if getattr(client, "_platform", "") is None:
        client._platform = {"linux": "Linux", "darwin": "MacOS"}.get(sys.platform, "Unknown")


def _error_shortener(http: Any) -> Callable[[Any], Awaitable[None]]:
    """A hook of the HTTP client that truncates the body of an error at `MAX_ERROR_BYTES`: the SDKs read all of it."""

    class Shortened(http.AsyncByteStream):  # type: ignore[misc]  # the library is imported at mount
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MAX_ERROR_BYTES
            chunks = aiter(self._stream)
            try:
                async for chunk in chunks:
                    yield chunk
                    left -= len(chunk)
                    if left <= 0:
                        await self._stream.aclose()
                        return
            finally:
                await exhaust(chunks)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def shorten(response: Any) -> None:
        if response.status_code >= 300:
            response.stream = Shortened(response.stream)

    return shorten


async def exhaust(iterator: Any) -> None:
    """Advance a closed iterator until it ends, so that no nested generator is left to the garbage collector."""
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
        while True:
            try:
                await anext(iterator)
            except Exception:  # noqa: BLE001 — a closed connection may raise anything
                return


@final
class Deadlines:
    """The deadlines of one call."""

    def __init__(self, total: float | None, idle: float | None, context: ErrorContext) -> None:
        self._end = None if total is None else anyio.current_time() + total
        self._total = total
        self._idle = idle
        self._error_context = context

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Bound one wait.

        Raises:
            LLMTimeoutError: A deadline passed.
        """
        now = anyio.current_time()
        left = None if self._end is None else self._end - now
        is_idle = self._idle is not None and (left is None or self._idle < left)
        seconds = self._idle if is_idle else left
        with anyio.CancelScope() as scope:
            if seconds is not None:
                scope.deadline = now + seconds
            yield
        if scope.cancelled_caught:
            raise LLMTimeoutError(
                f"{self._error_context.provider} sent nothing for {self._idle:g} s while {what} (idle_timeout)"
                if is_idle
                else f"{self._error_context.provider} did not finish within {self._total:g} s, still {what} (timeout)",
                provider=self._error_context.provider,
                model=self._error_context.model,
            )


@final
class HttpResponse:
    """An HTTP response whose body is being read."""

    def __init__(self, client: SdkHttpClient, response: Any, deadlines: Deadlines, context: ErrorContext) -> None:
        self._client = client
        self._response = response
        self._deadlines = deadlines
        self._error_context = context
        self._chunks = aiter(response.aiter_bytes())
        self._left = MAX_BODY_BYTES

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is an event stream; some servers respond with one JSON document instead."""
        kind: str = self._response.headers.get("content-type", "")
        return "json" not in kind.lower()

    async def receive(self) -> bytes | None:
        """The next bytes; None at the end.

        Raises:
            LLMTimeoutError: A deadline passed.
            StreamError: The connection broke, or the body exceeds `MAX_BODY_BYTES`.
        """
        with self._client.errors(self._error_context, StreamError), self._deadlines.waiting("answering"):
            try:
                chunk: bytes = await anext(self._chunks)
            except StopAsyncIteration:
                return None
        self._left -= len(chunk)
        if self._left < 0:
            raise StreamError(
                f"{self._error_context.provider} sent more than {MAX_BODY_BYTES} bytes",
                provider=self._error_context.provider,
                model=self._error_context.model,
                retryable=False,
            )
        return chunk

    async def receive_json(self) -> Any:
        """The whole body as JSON.

        Raises:
            StreamError: It is not JSON.
        """
        body = bytearray()
        while (chunk := await self.receive()) is not None:
            body += chunk
        try:
            return read_json(bytes(body))
        except ValueError as exc:
            raise StreamError(
                f"{self._error_context.provider} answered with something that is not JSON: "
                f"{self._error_context.clean(bytes(body[:200]).decode('utf-8', 'replace'))!r}",
                provider=self._error_context.provider,
                model=self._error_context.model,
            ) from exc

    async def drain(self) -> None:
        """Read the few bytes after a complete response, so that the connection can be reused."""
        with anyio.move_on_after(_DRAINING_SECONDS):
            try:
                for _ in range(_DRAINING_PIECES):
                    await anext(self._chunks)
            except Exception:  # noqa: BLE001 — usually the end of the body; failures no longer matter
                return

    async def aclose(self) -> None:
        """Close the connection unless the body was read to its end; bounded and shielded from cancellation."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
            try:
                await self._response.aclose()
            finally:
                await exhaust(self._chunks)


@final
class SdkHttpClient:
    """Sends requests with the client of one SDK."""

    def __init__(self, sdk: Sdk, client: Any) -> None:
        self._sdk = sdk
        self._client = client

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: dict[str, Any] | None, deadlines: Deadlines, context: ErrorContext
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and wait for the headers of the response.

        Raises:
            LLMError: There is no response, or its status is an error.
        """
        with self.errors(context, NetworkError), deadlines.waiting("waiting for an answer"):
            response = await self._send(method, path, body)
        opened = HttpResponse(self, response, deadlines, context)
        try:
            yield opened
        finally:
            await opened.aclose()

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        kind = self._sdk.http.Response
        if method == "get":
            return await self._client.get(path, cast_to=kind, stream=True)
        try:
            content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as exc:
            raise InvalidRequestError(f"the request cannot be written as JSON: {exc}") from exc
        headers = {"Content-Type": "application/json"}
        return await self._client.post(path, cast_to=kind, content=content, options={"headers": headers}, stream=True)

    @contextmanager
    def errors(self, context: ErrorContext, broken: type[LLMError]) -> Iterator[None]:
        """Map exceptions of the SDK and its HTTP library to the error taxonomy.

        Args:
            context: The provider and model, for the error.
            broken: The error for a connection that fails.
        """
        sdk, http = self._sdk.module, self._sdk.http
        about: dict[str, Any] = {"provider": context.provider, "model": context.model}
        try:
            yield
        except sdk.APIStatusError as exc:
            _raise(error_from_status(context, exc.status_code, exc.response.headers, _body(exc)), exc, context)
        except (sdk.APITimeoutError, http.TimeoutException) as exc:
            _raise(
                LLMTimeoutError(f"{context.provider} could not be reached in time (connect_timeout)", **about),
                exc,
                context,
            )
        except (sdk.APIConnectionError, http.RequestError) as exc:
            cause: BaseException = exc.__cause__ or exc
            why = f"{type(cause).__name__}: {context.clean(str(cause))}".rstrip(": ")
            what = "could not be reached" if broken is NetworkError else "broke the connection"
            _raise(broken(f"{context.provider} {what} ({why})", **about), exc, context)

    async def aclose(self) -> None:
        """Close the client and its idle connections; bounded and idempotent."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING_SECONDS):
            await self._client.close()


def _body(exc: Any) -> Any:
    """An error's body, parsed if it is JSON."""
    body = exc.body
    if not isinstance(body, str):
        return body
    try:
        return read_json(body)
    except ValueError:
        return body


def _raise(error: LLMError, cause: BaseException, context: ErrorContext) -> None:
    """Raise with the cause, unless its text contains the key."""
    if context.secret and context.secret in f"{cause}{cause.__cause__}":
        raise error from None
    raise error from cause
