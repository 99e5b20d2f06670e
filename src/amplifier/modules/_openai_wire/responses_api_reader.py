"""Responses of OpenAI's Responses API.

The blocks of the response come from the finished items; the deltas before them are only streamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from amplifier.models import ContentBlockUnion, ReasoningBlock, StreamChunk, TextBlock, from_dict

from .._llm_provider import ResponseReader, ServiceError, SseEvent, read_json
from .shared_fields import count_tokens

_OUR_TYPE = {"function_call": "tool_call"}
_BLOCK_DELTAS = (
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
)
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_ENDS = ("response.completed", "response.incomplete")


@final
class ResponsesApiReader(ResponseReader):
    """Reads one response."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        super().__init__(taken_ids)
        self._over = False

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event; unknown types are ignored."""
        if event.data.strip() == "[DONE]":
            return []
        data = read_json(event.data)
        kind = data.get("type") or event.name or ""
        if kind == "error" or data.get("error"):
            raise ServiceError(data)
        if kind == "response.failed":
            raise ServiceError(data["response"])
        if kind == "response.output_item.added":
            return self._start(data["output_index"], data["item"])
        if kind in _BLOCK_DELTAS:
            return self.blocks.add(data["output_index"], data["delta"])
        if kind in _TEXT_DELTAS:
            return self._add_text((data["output_index"], data.get("content_index", 0)), data["delta"])
        if kind == "response.output_item.done":
            return self._end(data["output_index"], data["item"])
        if kind in _ENDS:
            self._over = True
            self._read_metadata(data["response"])
        return []

    def read_body(self, body: dict[str, Any]) -> list[StreamChunk]:
        """Read a response that was not streamed."""
        if body.get("error"):
            raise ServiceError(body)
        chunks: list[StreamChunk] = []
        if not isinstance(body["output"], list):
            raise TypeError("output is no list")
        for index, item in enumerate(body["output"]):
            chunks += self._start(index, item)
            chunks += self._end(index, item)
        self._read_metadata(body)
        return chunks

    @property
    def is_over(self) -> bool:
        """Whether the response has been completed."""
        return self._over

    def _read_metadata(self, response: dict[str, Any]) -> None:
        self.model = response.get("model")
        if response.get("id"):
            self.metadata["response_id"] = response["id"]
        why = response.get("incomplete_details") or {}
        self.finish_reason = why.get("reason") or response.get("status") or "completed"
        count_tokens(self.token_counts, response.get("usage"), input_name="input", output_name="output")

    def _start(self, index: int, item: dict[str, Any]) -> list[StreamChunk]:
        if item["type"] == "message":  # its parts are the blocks
            return []
        tool = item.get("name") if item["type"] == "function_call" else None
        return [self.blocks.start(index, _OUR_TYPE.get(item["type"], item["type"]), tool)]

    def _add_text(self, key: tuple[int, int], text: str) -> list[StreamChunk]:
        chunks = [] if key in self.blocks else [self.blocks.start(key, "text")]
        return chunks + self.blocks.add(key, text)

    def _end(self, index: int, item: dict[str, Any]) -> list[StreamChunk]:
        if item["type"] == "message":
            return [
                chunk
                for number, part in enumerate(item["content"])
                for chunk in self._end_part((index, number), part, item)
            ]
        chunks = [] if index in self.blocks else self._start(index, item)
        if item["type"] == "function_call":
            arguments = item.get("arguments") or self.blocks.text(index)
            more = {"item_id": item["id"]} if item.get("id") else {}
            return chunks + self.end_call(index, item.get("call_id"), item["name"], arguments, **more)
        return [*chunks, self.blocks.end(index, _block(item))]

    def _end_part(self, key: tuple[int, int], part: dict[str, Any], item: dict[str, Any]) -> list[StreamChunk]:
        more = {name: item[name] for name in ("phase",) if item.get(name)}
        more |= {name: part[name] for name in ("annotations",) if part.get(name)}
        if part["type"] == "refusal":
            more["refusal"] = True
        block = TextBlock(text=part.get("text") or part.get("refusal") or "", **more)
        if not block.text and key not in self.blocks:
            return []
        chunks = [] if key in self.blocks else [self.blocks.start(key, "text")]
        return [*chunks, self.blocks.end(key, block)]


def _block(item: dict[str, Any]) -> ContentBlockUnion:
    if item["type"] == "reasoning":
        kept = {name: item[name] for name in ("id", "encrypted_content", "status") if item.get(name)}
        return ReasoningBlock(content=item.get("content") or [], summary=item.get("summary") or [], **kept)
    block: ContentBlockUnion = from_dict(ContentBlockUnion, item)  # an item of another type, kept as received
    return block
