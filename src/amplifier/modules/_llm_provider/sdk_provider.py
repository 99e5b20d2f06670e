"""The provider on an official SDK; services differ in their wire format and model catalogue."""

from __future__ import annotations

import copy
import logging
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import Any, final

import anyio

from amplifier.contracts import Hooks
from amplifier.errors import LLMError, StreamError
from amplifier.events import LLM_REQUEST, LLM_RESPONSE, PROVIDER_RETRY, PROVIDER_TOOL_SEQUENCE_REPAIRED
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    ToolCall,
    ToolCallBlock,
    Usage,
)

from .conversation import read_conversation
from .error_mapping import ErrorContext, error_from_stream_event
from .options import ProviderOptions
from .prices import Prices
from .response_reader import ResponseReader, ServiceError
from .sdk_http_client import Deadlines, HttpResponse, SdkHttpClient
from .server_sent_events import SseEvent, SseParser
from .streams import AnswerStream, AnswerStreams
from .wire_format import CallOptions, EncodedRequest, ModelCatalogue, WireFormat, merge_params, resolve_call_options

logger = logging.getLogger("amplifier.modules.provider")

EVENTS = (LLM_REQUEST, LLM_RESPONSE, PROVIDER_RETRY, PROVIDER_TOOL_SEQUENCE_REPAIRED)
"""The events a provider emits."""

_LISTING_SECONDS = 30.0


@final
class SdkProvider:
    """A language model behind an official SDK.

    Args:
        info: The provider's description.
        options: Its configuration.
        client: Sends the requests.
        wire_format: Encodes requests and reads responses.
        catalogue: Describes the service's models.
        prices: The prices of the models.
        hooks: Receives events; without it the provider emits none.
        streams: Makes the return values of `stream`.
    """

    def __init__(
        self,
        info: ProviderInfo,
        options: ProviderOptions,
        *,
        client: SdkHttpClient,
        wire_format: WireFormat,
        catalogue: ModelCatalogue,
        prices: Prices,
        hooks: Hooks | None = None,
        streams: AnswerStreams | None = None,
    ) -> None:
        self._info = info
        self._options = options
        self._client = client
        self._wire_format = wire_format
        self._catalogue = catalogue
        self._prices = prices
        self._hooks = hooks
        self._streams = streams or AnswerStreams()
        self.priority = options.priority

    def __repr__(self) -> str:
        return f"<SdkProvider {self.name!r} for {self._options.default_model!r}>"

    @property
    def name(self) -> str:
        """The name it is mounted under."""
        return self._info.id

    def get_info(self) -> ProviderInfo:
        """Describe the provider without a request to the service."""
        return copy.deepcopy(self._info)

    async def list_models(self) -> list[ModelInfo]:
        """The service's list of models, or the known models if the list cannot be read."""
        context = self._error_context(None)
        try:
            deadlines = Deadlines(_LISTING_SECONDS, None, context)
            async with self._client.open("get", self._catalogue.path, None, deadlines, context) as response:
                return self._catalogue.read(await response.receive_json())
        except (LLMError, LookupError, TypeError, AttributeError, ValueError) as exc:
            logger.warning("%s: the list of models could not be read (%s); using the known models", self.name, exc)
            return self._catalogue.known()

    def output_limit(self, request: ChatRequest, **kwargs: Any) -> int | None:
        """The most output tokens of a call with these arguments, for budgets."""
        known = self._catalogue.look_up(kwargs.get("model") or request.model or self._options.default_model)
        return resolve_call_options(self._options, request, kwargs, known.max_output_tokens).max_tokens

    def estimate_cost(
        self, request: ChatRequest, *, input_tokens: int, output_tokens: int, **kwargs: Any
    ) -> Decimal | None:
        """The most that a call with so many tokens may cost in US dollars; None if the price is not known."""
        model = kwargs.get("model") or request.model or self._options.default_model
        return self._prices.most(model, input_tokens, output_tokens)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Send a request and wait for the whole response.

        Args:
            request: The conversation and its options.
            kwargs: ``model``, ``max_tokens``, ``temperature``, ``top_p``, ``reasoning_effort``, ``tool_choice`` and
                ``timeout`` take precedence over the request; others are ignored.

        Raises:
            LLMError: The call failed.
        """
        response: ChatResponse | None = None
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                response = chunk.response
        assert response is not None  # the last chunk has it, or there was an error
        return response

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Send a request and stream the response; leaving early closes the connection.

        Args:
            request: As for `complete`.
            kwargs: As for `complete`.

        Raises:
            LLMError: The call failed, on entering or while reading chunks.
        """
        return self._streams.stream(self._exchange(request, kwargs))

    @asynccontextmanager
    async def _exchange(
        self, request: ChatRequest, kwargs: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        known = self._catalogue.look_up(kwargs.get("model") or request.model or self._options.default_model)
        usual_limit = known.max_output_tokens if self._wire_format.always_limits else None
        call = resolve_call_options(self._options, request, kwargs, usual_limit)
        conversation = read_conversation(request.messages)
        if conversation.repairs:
            repairs = {"repair_count": len(conversation.repairs), "repairs": conversation.repairs}
            await self._emit(PROVIDER_TOOL_SEQUENCE_REPAIRED, {"provider": self.name, **repairs})
        encoded = self._wire_format.encode(conversation, request, call)
        encoded.body = merge_params(encoded.body, self._options.extra_request_params)
        answering = _StreamingCall(self, call, encoded, self._wire_format.reader(conversation.call_ids))
        async with answering.opened(len(request.messages)):
            yield answering

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response; if it lists none, those among its content blocks."""
        if response.tool_calls is not None:
            return list(response.tool_calls)
        return [
            ToolCall(id=block.id, name=block.name, arguments=block.input)
            for block in response.content
            if isinstance(block, ToolCallBlock)
        ]

    async def aclose(self) -> None:
        """Close unfinished streams, then the client; idempotent."""
        await self._streams.aclose()
        await self._client.aclose()

    def _error_context(self, model: str | None) -> ErrorContext:
        options = self._options
        return ErrorContext(self.name, model, options.api_key, options.overloaded_delay_multiplier)

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        if self._hooks is not None:
            await self._hooks.emit(event, data)

    def _usage(self, reader: ResponseReader, call: CallOptions) -> Usage:
        used = reader.token_counts
        cost = self._prices.cost(reader.model or call.model, used) if used.is_reported else None
        return Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.input_tokens + used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=cost,
        )


class _StreamingCall:
    """One call in progress: iterates over its chunks and holds no generator and no cancel scope between them."""

    def __init__(
        self, provider: SdkProvider, call: CallOptions, encoded: EncodedRequest, reader: ResponseReader
    ) -> None:
        self._provider = provider
        self._call = call
        self._encoded = encoded
        self._reader = reader
        self._error_context = provider._error_context(call.model)
        self._response: HttpResponse | None = None
        self._parser = SseParser()
        self._ready: deque[StreamChunk] = deque()
        self._raw: list[Any] = []
        self._began = 0.0
        self._is_over = False
        self._is_complete = False

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    @asynccontextmanager
    async def opened(self, message_count: int) -> AsyncIterator[None]:
        """Send the request, retry if allowed, and close the connection at the end."""
        provider, options = self._provider, self._provider._options
        about: dict[str, Any] = {"provider": provider.name, "model": self._call.model, "message_count": message_count}
        if options.raw:
            about["raw"] = self._encoded.body
        await provider._emit(LLM_REQUEST, about)
        self._began = anyio.current_time()
        attempt = 0
        while True:
            exchange = self._exchange()
            try:
                self._response = await exchange.__aenter__()
                break
            except LLMError as exc:
                attempt += 1
                if not exc.retryable or attempt > options.max_retries:
                    await self._report("error", exc)
                    raise
                await self._wait_for_retry(attempt, exc)
        try:
            yield
            if self._is_complete:
                await self._response.drain()
        finally:
            await exchange.__aexit__(None, None, None)

    def _exchange(self) -> AbstractAsyncContextManager[HttpResponse]:
        options = self._provider._options
        deadlines = Deadlines(
            self._call.timeout, options.idle_timeout if self._call.stream else None, self._error_context
        )
        return self._provider._client.open(
            "post", self._provider._wire_format.path, self._encoded.body, deadlines, self._error_context
        )

    async def _wait_for_retry(self, attempt: int, exc: LLMError) -> None:
        options = self._provider._options
        delay = min(options.min_retry_delay * 2.0 ** (attempt - 1), options.max_retry_delay)
        delay *= exc.delay_multiplier
        if options.retry_jitter:
            delay *= random.uniform(0.5, 1.5)
        delay = max(delay, exc.retry_after or 0.0)
        details = {"attempt": attempt, "max_retries": options.max_retries, "delay": delay}
        about = {"provider": self._provider.name, "model": self._call.model, "retry_after": exc.retry_after}
        error = {"error_type": type(exc).__name__, "error_message": str(exc)}
        await self._provider._emit(PROVIDER_RETRY, {**about, **details, **error})
        await anyio.sleep(delay)

    async def __anext__(self) -> StreamChunk:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            try:
                await self._advance()
            except LLMError as exc:
                self._is_over = True
                await self._report("error", exc)
                raise
        return self._ready.popleft()

    async def _advance(self) -> None:
        """Receive until there are chunks to return, or the response is complete."""
        assert self._response is not None
        if not self._call.stream or not self._response.is_event_stream:
            self._read(self._reader.read_body, await self._response.receive_json())
            await self._finish()
            return
        received = await self._response.receive()
        for event in self._events(received):
            self._read(self._reader.read_event, event)
            if self._reader.is_over:
                break
        if received is None and not self._reader.is_over:
            self._read(lambda _: self._reader.end_of_stream(), None)
        if received is None or self._reader.is_over:
            await self._finish()

    def _events(self, received: bytes | None) -> list[SseEvent]:
        try:
            return self._parser.end() if received is None else self._parser.feed(received)
        except ValueError as exc:
            raise self._malformed(exc) from exc

    def _read(self, read: Any, received: Any) -> None:
        """Pass received data to the reader; a service that violates its format raises a `StreamError`."""
        if self._provider._options.raw:
            self._raw.append(received.data if isinstance(received, SseEvent) else received)
        try:
            self._ready += read(received)
        except ServiceError as exc:
            raise error_from_stream_event(self._error_context, exc.body) from None
        except LLMError as exc:
            self._set_origin(exc)
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise self._malformed(exc) from exc

    def _malformed(self, exc: Exception) -> StreamError:
        why = self._error_context.clean(f"{type(exc).__name__}: {exc}")
        text = f"{self._error_context.provider} sent a malformed response ({why})"
        return StreamError(text, provider=self._error_context.provider, model=self._error_context.model)

    def _set_origin(self, exc: LLMError) -> None:
        exc.provider = exc.provider or self._error_context.provider
        exc.model = exc.model or self._error_context.model

    async def _finish(self) -> None:
        try:
            usage = self._provider._usage(self._reader, self._call)
            response = self._reader.response(usage, self._encoded.degradation)
        except LLMError as exc:
            self._set_origin(exc)
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise self._malformed(exc) from exc
        self._is_over = self._is_complete = True
        await self._report("ok", usage=usage)
        self._ready.append(StreamChunk(kind="response", response=response))

    async def _report(self, status: str, exc: LLMError | None = None, usage: Usage | None = None) -> None:
        about: dict[str, Any] = {
            "provider": self._provider.name,
            "model": self._reader.model or self._call.model,
            "duration_ms": round((anyio.current_time() - self._began) * 1000),
            "status": status,
        }
        if usage is not None:
            counted = {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            }
            about["usage"] = {name: count for name, count in counted.items() if count is not None}
            about["usage"]["cost_usd"] = None if usage.cost_usd is None else str(usage.cost_usd)
        if exc is not None:
            about["error"] = {"type": type(exc).__name__, "message": str(exc), "retryable": exc.retryable}
        if self._provider._options.raw:
            about["raw"] = self._raw
        await self._provider._emit(LLM_RESPONSE, about)
