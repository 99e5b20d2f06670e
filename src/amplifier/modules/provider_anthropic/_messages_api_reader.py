"""Responses of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from amplifier.models import (
    ContentBlockUnion,
    RedactedThinkingBlock,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    from_dict,
)

from .._llm_provider import ResponseReader, ServiceError, SseEvent, read_json

_OUR_TYPE = {"tool_use": "tool_call"}
_DELTA_TEXT = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@final
class MessagesApiReader(ResponseReader):
    """Reads one message."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        super().__init__(taken_ids)
        self._starts: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._stopped = False

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event of the stream; unknown types are ignored, as the service requires."""
        data = read_json(event.data)
        kind = data.get("type") or event.name
        if kind == "message_start":
            self._begin(data["message"])
        elif kind == "content_block_start":
            return self._start(data["index"], data["content_block"])
        elif kind == "content_block_delta":
            return self._delta(data["index"], data["delta"])
        elif kind == "content_block_stop":
            return self._stop(data["index"])
        elif kind == "message_delta":
            self._end(data["delta"], data.get("usage"))
        elif kind == "message_stop":
            self._stopped = True
        elif kind == "error":
            raise ServiceError(data)
        return []

    def read_body(self, body: dict[str, Any]) -> list[StreamChunk]:
        """Read a message that was not streamed."""
        if body.get("type") == "error":
            raise ServiceError(body)
        self._begin(body)
        chunks: list[StreamChunk] = []
        for index, block in enumerate(body["content"]):
            chunks += self._start(index, block)
            chunks += self._stop(index)
        self._end(body, None)
        return chunks

    @property
    def is_over(self) -> bool:
        """Whether the message is complete."""
        return self._stopped

    def _begin(self, message: dict[str, Any]) -> None:
        self.model = message.get("model")
        if message.get("id"):
            self.metadata["response_id"] = message["id"]
        self._count(message.get("usage"))

    def _end(self, delta: dict[str, Any], usage: dict[str, Any] | None) -> None:
        self.finish_reason = delta.get("stop_reason") or self.finish_reason
        for name in ("stop_sequence", "stop_details"):
            if delta.get(name) is not None:
                self.metadata[name] = delta[name]
        self._count(usage)

    def _start(self, index: int, block: dict[str, Any]) -> list[StreamChunk]:
        self._starts[index] = {**block}
        kind = block["type"]
        tool = block.get("name") if kind == "tool_use" else None
        chunks = [self.blocks.start(index, _OUR_TYPE.get(kind, kind), tool)]
        begun = block.get("thinking" if kind == "thinking" else "text")
        if isinstance(begun, str) and begun:
            chunks += self.blocks.add(index, begun)
        return chunks

    def _delta(self, index: int, delta: dict[str, Any]) -> list[StreamChunk]:
        kind = delta["type"]
        if kind in _DELTA_TEXT:
            return self.blocks.add(index, delta[_DELTA_TEXT[kind]])
        start = self._starts[index]
        if kind == "signature_delta":
            start["signature"] = (start.get("signature") or "") + delta["signature"]
        elif kind == "citations_delta":
            start["citations"] = [*(start.get("citations") or ()), delta["citation"]]
        return []

    def _stop(self, index: int) -> list[StreamChunk]:
        start, text = self._starts.pop(index), self.blocks.text(index)
        if start["type"] == "tool_use":
            arguments = text or start.get("input") or {}
            return self.end_call(index, start.get("id"), start["name"], arguments)
        return [self.blocks.end(index, _block(start, text))]

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Read token counts; later ones replace earlier ones, which they include."""
        if not usage:
            return
        used = self._usage
        used |= {name: value for name, value in usage.items() if value is not None}
        read, written = used.get("cache_read_input_tokens"), used.get("cache_creation_input_tokens")
        self.token_counts.input_tokens = used.get("input_tokens", 0) + (read or 0) + (written or 0)
        self.token_counts.output_tokens = used.get("output_tokens", 0)
        self.token_counts.cache_read_tokens = read
        self.token_counts.cache_write_tokens = written
        self.token_counts.reasoning_tokens = (used.get("output_tokens_details") or {}).get("thinking_tokens")
        self.token_counts.is_reported = True


def _block(start: dict[str, Any], text: str) -> ContentBlockUnion:
    kind = start["type"]
    if kind == "text":
        more = {"citations": start["citations"]} if start.get("citations") else {}
        return TextBlock(text=text, **more)
    if kind == "thinking":
        return ThinkingBlock(thinking=text, signature=start.get("signature") or None)
    if kind == "redacted_thinking":
        return RedactedThinkingBlock(data=start["data"])
    # An unknown type or one of the service's own tools: kept as received, with its input parsed.
    whole = {**start, "input": read_json(text)} if text and "input" in start else start
    block: ContentBlockUnion = from_dict(ContentBlockUnion, whole)
    return block
