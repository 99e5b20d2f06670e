"""What is mounted: `ReplayProvider` answers from the recordings, `RecordingProvider` asks another provider and records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from amplifier.contracts import Coordinator, Provider
from amplifier.errors import LLMError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    ToolCall,
    from_dict,
)

from .._llm_provider import AnswerStream, AnswerStreams, start_soon_of
from .._local_answers import Answer, LocalAnswerProvider
from ._cassette import Exchange
from ._recording import SessionRecording


class ReplayProvider(LocalAnswerProvider):
    """Answers from the recordings of one provider, under its name.

    Args:
        coordinator: For events.
        name: The name that the recorded provider was mounted under.
        recording: The session's part of the cassette.
        find: Which recording answers a request; the one that `SessionRecording.require` finds if absent.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        recording: SessionRecording,
        find: Callable[[ChatRequest], Exchange] | None = None,
    ) -> None:
        super().__init__(coordinator)
        self._name = name
        self._recording = recording
        self._find = find
        self._model = str(self.get_info().defaults.get("model") or name)

    def __repr__(self) -> str:
        return f"<ReplayProvider {self._name!r} of {self._recording.cassette!r}>"

    def get_info(self) -> ProviderInfo:
        """The recorded provider's description, so that contexts compute the same budget."""
        recorded = self._recording.cassette.providers.get(self._name)
        return from_dict(ProviderInfo, recorded or {"id": self._name, "display_name": self._name})

    async def list_models(self) -> list[ModelInfo]:
        """The recorded provider's default model; its list is not recorded."""
        info = self.get_info()
        defaults = info.defaults
        window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        return [
            ModelInfo(
                id=self._model,
                display_name=self._model,
                context_window=window if isinstance(window, int) else self._context_window,
                max_output_tokens=output if isinstance(output, int) else self._max_output_tokens,
                capabilities=info.capabilities,
            )
        ]

    async def _answer(self, request: ChatRequest) -> Answer:
        found = self._recording.require(self._name, request) if self._find is None else self._find(request)
        return self._recording.answer(found)


class RecordingProvider:
    """Asks another provider and records what comes back; in mode ``new`` it replays what is recorded already.

    Every other member is that of the other provider.

    Args:
        coordinator: For events, and to close streams that are left.
        name: The name that the other provider is mounted under.
        inner: The other provider.
        recording: The session's part of the cassette.
    """

    def __init__(self, coordinator: Coordinator, name: str, inner: Provider, recording: SessionRecording) -> None:
        self._coordinator = coordinator
        self._name = name
        self._inner = inner
        self._recording = recording
        self._streams = AnswerStreams(start_soon_of(coordinator))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._inner!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        """The other provider's name."""
        return self._inner.name

    @property
    def inner(self) -> Provider:
        """The other provider."""
        return self._inner

    def get_info(self) -> ProviderInfo:
        """The other provider's description."""
        return self._inner.get_info()

    async def list_models(self) -> list[ModelInfo]:
        """The other provider's models; they are not recorded."""
        return await self._inner.list_models()

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response."""
        return self._inner.parse_tool_calls(response)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Ask and record.

        Raises:
            LLMError: What the other provider raised, which is recorded as well.
        """
        found = self._recording.find(self._name, request)
        if found is not None:
            return await self._replay(found).complete(request)
        exchange = self._recording.begin(self._name, request)
        scrubber = self._recording.scrubber
        try:
            response = await self._inner.complete(request, **kwargs)
        except LLMError as error:
            exchange.fail(error, None, scrubber)
            raise
        if isinstance(response, ChatResponse):  # anything else is refused by the loop
            exchange.finish(response, None, scrubber)
        return response

    async def aclose(self) -> None:
        """Close unfinished streams; a second call does nothing."""
        await self._streams.aclose()

    def _replay(self, exchange: Exchange) -> ReplayProvider:
        return ReplayProvider(self._coordinator, self._name, self._recording, find=lambda _: exchange)


class StreamingRecordingProvider(RecordingProvider):
    """The same for a provider that can stream: loops ask for the member ``stream``."""

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Stream the answer and record its chunks; an answer that is left before its end is not recorded.

        Raises:
            LLMError: What the other provider raised, while the chunks are read.
        """
        return self._streams.stream(self._stream(request, kwargs))

    @asynccontextmanager
    async def _stream(
        self, request: ChatRequest, kwargs: dict[str, Any]
    ) -> AsyncGenerator[AsyncIterator[StreamChunk], None]:
        found = self._recording.find(self._name, request)
        if found is not None:
            async with self._replay(found).stream(request) as chunks:
                yield chunks
            return
        exchange = self._recording.begin(self._name, request)
        inner: Any = self._inner
        async with AsyncExitStack() as stack:
            try:
                chunks = await stack.enter_async_context(inner.stream(request, **kwargs))
            except LLMError as error:
                exchange.fail(error, None, self._recording.scrubber)
                raise
            yield await stack.enter_async_context(aclosing(self._recorded(chunks, exchange)))

    async def _recorded(
        self, chunks: AsyncIterator[StreamChunk], exchange: Exchange
    ) -> AsyncGenerator[StreamChunk, None]:
        seen: list[StreamChunk] = []
        try:
            async for chunk in chunks:
                if chunk.response is not None:
                    exchange.finish(chunk.response, seen, self._recording.scrubber)
                else:
                    seen.append(chunk)
                yield chunk
        except LLMError as error:
            exchange.fail(error, seen, self._recording.scrubber)
            raise


def recording_provider(
    coordinator: Coordinator, name: str, inner: Provider, recording: SessionRecording
) -> RecordingProvider:
    """A provider that records another one, with the member ``stream`` if the other one has it."""
    kind = StreamingRecordingProvider if hasattr(inner, "stream") else RecordingProvider
    return kind(coordinator, name, inner, recording)
