"""The provider: sends each call to the server and streams the response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio

from amplifier.contracts import Coordinator
from amplifier.errors import ContractError, LLMError
from amplifier.events import LLM_REQUEST, LLM_RESPONSE, PROVIDER_TOOL_SEQUENCE_REPAIRED
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ConfigField,
    Degradation,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    ToolCall,
    ToolCallBlock,
    to_dict,
)

from .._llm_provider import AnswerStream, AnswerStreams, start_soon_of
from ._chat_request import EncodedRequest, encode
from ._chat_response import Decoder, Lines
from ._error_mapping import TRANSPORT_ERRORS, from_body, from_error, from_transport
from ._options import ENVIRONMENT_VARIABLE, Options
from ._server_process import Server

_NAME = "local"
_PATH = "/v1/chat/completions"
_CAPABILITIES = ("tools", "streaming", "json_schema")


class LocalProvider:
    """A model on this machine.

    Args:
        coordinator: For events.
        options: The configuration.
        server: Runs the model.
    """

    def __init__(self, coordinator: Coordinator, options: Options, server: Server) -> None:
        self._coordinator = coordinator
        self._options = options
        self._server = server
        self._streams = AnswerStreams(start_soon_of(coordinator))

    def __repr__(self) -> str:
        return f"<LocalProvider {self._options.model!r}: {self._server!r}>"

    @property
    def name(self) -> str:
        """The name it is mounted under."""
        return _NAME

    def get_info(self) -> ProviderInfo:
        """Describe the provider without loading the model."""
        return ProviderInfo(
            id=_NAME,
            display_name="Local (llama.cpp)",
            capabilities=list(_CAPABILITIES),
            defaults={
                "model": self._options.model,
                "context_window": self._options.context_size,
                "max_output_tokens": min(self._options.max_tokens, self._options.context_size // 2),
            },
            config_fields=[
                ConfigField(
                    id="model_path",
                    display_name="Model file",
                    prompt="The path of a GGUF file",
                    env_var=ENVIRONMENT_VARIABLE,
                )
            ],
        )

    async def list_models(self) -> list[ModelInfo]:
        """The configured model."""
        defaults = self.get_info().defaults
        return [
            ModelInfo(
                id=self._options.model,
                display_name=self._options.model,
                context_window=defaults["context_window"],
                max_output_tokens=defaults["max_output_tokens"],
                capabilities=list(_CAPABILITIES),
            )
        ]

    def estimate_cost(self, request: ChatRequest, **kwargs: Any) -> Decimal | None:
        """A model on this machine costs nothing."""
        return Decimal(0)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Collect the stream.

        Raises:
            LLMError: The call failed.
        """
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                if chunk.response is not None:
                    return chunk.response
        raise ContractError("provider-local ended its stream without a response", module="provider-local")

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Stream the response; leaving early stops the server's generation.

        Raises:
            LLMError: The call failed; raised while reading chunks.
        """
        return self._streams.stream(self._stream(request))

    async def aclose(self) -> None:
        """Close unfinished streams, then the server; idempotent."""
        await self._streams.aclose()
        await self._server.aclose()

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response; if it lists none, those among its content blocks."""
        if response.tool_calls is not None:
            return list(response.tool_calls)
        blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
        return [ToolCall(id=block.id, name=block.name, arguments=block.input) for block in blocks]

    @asynccontextmanager
    async def _stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[StreamChunk], None]:
        async with aclosing(self._chunks_with_events(request)) as chunks:
            yield chunks

    async def _chunks_with_events(self, request: ChatRequest) -> AsyncGenerator[StreamChunk, None]:
        started = anyio.current_time()
        encoded = encode(request, self._options)
        await self._emit_request(request, encoded)
        decoder = Decoder(self._options.model, set(encoded.call_ids))
        try:
            async with aclosing(self._chunks(encoded.body, decoder)) as chunks:
                async for chunk in chunks:
                    if chunk.response is not None:
                        if encoded.omitted:
                            chunk.response.degradation = Degradation(
                                requested=", ".join(encoded.omitted), actual="text", reason="the model reads text only"
                            )
                        await self._emit_response(chunk.response, started)
                    yield chunk
        except LLMError as error:
            await self._emit_failure(error, started)
            raise

    async def _chunks(self, body: dict[str, Any], decoder: Decoder) -> AsyncGenerator[StreamChunk, None]:
        """Send the request and decode the response.

        Raises:
            LLMError: The server rejected the request, closed the connection early, or stopped sending.
        """
        model = self._options.model
        server = await self._server.running()
        lines = Lines()
        try:
            async with server.post(_PATH, body, idle_timeout=self._options.idle_timeout) as response:
                if response.status != 200:
                    raise from_body(response.status, await response.aread(), model)
                # Not response.aiter_stream(): unfinished, it leaves generators to the garbage collector.
                body_stream: Any = response.stream
                async with aclosing(body_stream.__aiter__()) as pieces:
                    async for piece in pieces:
                        for event in lines.take(piece):
                            if isinstance(error := event.get("error"), dict):
                                raise from_error(error, 500, model)
                            for chunk in decoder.take(event):
                                yield chunk
        except TRANSPORT_ERRORS as error:
            await self._server.wait_if_dying(server)
            raise from_transport(
                error, model, has_begun=decoder.has_begun, idle_timeout=self._options.idle_timeout
            ) from error
        if decoder.finish_reason is None:  # the process may have died: the end of its stream looks like any other
            await self._server.wait_if_dying(server)
        for chunk in decoder.finish():
            yield chunk

    async def _emit_request(self, request: ChatRequest, encoded: EncodedRequest) -> None:
        emit = self._coordinator.hooks.emit
        if encoded.repaired:
            repairs = [{"tool_call_id": call_id} for call_id in encoded.repaired]
            details = {"provider": _NAME, "repair_count": len(repairs), "repairs": repairs}
            await emit(PROVIDER_TOOL_SEQUENCE_REPAIRED, details)
        details = {"provider": _NAME, "model": self._options.model, "message_count": len(request.messages)}
        await emit(LLM_REQUEST, {**details, "raw": encoded.body} if self._options.raw else details)

    async def _emit_response(self, response: ChatResponse, started: float) -> None:
        usage = response.usage
        assert usage is not None  # the decoder always sets it
        shown = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        if usage.cache_read_tokens is not None:
            shown["cache_read_tokens"] = usage.cache_read_tokens
        details = {**self._event_fields(started), "status": "ok", "usage": shown}
        await self._coordinator.hooks.emit(
            LLM_RESPONSE, {**details, "raw": to_dict(response)} if self._options.raw else details
        )

    async def _emit_failure(self, error: LLMError, started: float) -> None:
        failed = {"type": type(error).__name__, "message": str(error)}
        details = {**self._event_fields(started), "status": "error", "error": failed}
        await self._coordinator.hooks.emit(LLM_RESPONSE, details)

    def _event_fields(self, started: float) -> dict[str, Any]:
        duration = round((anyio.current_time() - started) * 1000)
        return {"provider": _NAME, "model": self._options.model, "duration_ms": duration}
