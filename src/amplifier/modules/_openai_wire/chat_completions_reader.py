"""Responses of OpenAI's Chat Completions API.

Servers of this API deviate from it: no index on a call, one index for all calls, a name with every piece, arguments as an
object, no usage, no end mark. The reader accepts all of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, final

import attrs

from amplifier.models import StreamChunk, TextBlock, ThinkingBlock

from .._llm_provider import ResponseReader, ServiceError, SseEvent, read_json
from .shared_fields import REASONING_FIELDS, count_tokens

_DONE = "[DONE]"


@attrs.define
class _Call:
    id: str | None
    name: str


@final
class ChatCompletionsReader(ResponseReader):
    """Reads one completion."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        super().__init__(taken_ids)
        self._open_field: str | None = None
        self._calls: dict[int, _Call] = {}
        self._by_index: dict[Any, int] = {}
        self._done = False

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one chunk."""
        if event.data.strip() == _DONE:
            self._done = True
            return self.end_of_stream()
        data = read_json(event.data)
        if data.get("error") or event.name == "error":
            raise ServiceError(data)
        self._read_metadata(data)
        chunks: list[StreamChunk] = []
        for choice in (data.get("choices") or ())[:1]:
            chunks += self._read_delta(choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return chunks

    def read_body(self, body: dict[str, Any]) -> list[StreamChunk]:
        """Read a completion that was not streamed."""
        if body.get("error"):
            raise ServiceError(body)
        self._read_metadata(body)
        choice = body["choices"][0]
        chunks = self._read_delta(choice["message"])
        self.finish_reason = choice.get("finish_reason") or "stop"
        return chunks + self.end_of_stream()

    @property
    def is_over(self) -> bool:
        """Whether the end mark was received."""
        return self._done

    def end_of_stream(self) -> list[StreamChunk]:
        """Complete every block; without an end mark too, if the server sent a finish reason."""
        super().end_of_stream()
        chunks = self._end_text()
        for number, call in self._calls.items():
            key = ("call", number)
            chunks += self.end_call(key, call.id, call.name, self.blocks.text(key))
        self._calls = {}
        return chunks

    def _read_metadata(self, data: dict[str, Any]) -> None:
        self.model = data.get("model") or self.model
        for name, member in (("response_id", "id"), ("system_fingerprint", "system_fingerprint")):
            if data.get(member):
                self.metadata[name] = data[member]
        count_tokens(self.token_counts, data.get("usage"), input_name="prompt", output_name="completion")

    def _read_delta(self, delta: dict[str, Any]) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        for field in (*REASONING_FIELDS, "content", "refusal"):
            text = delta.get(field)
            if isinstance(text, str) and text:
                chunks += self._add_text(field, text)
        for piece in delta.get("tool_calls") or ():
            chunks += self._add_call(piece)
        return chunks

    def _add_text(self, field: str, text: str) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        if self._open_field != field:
            chunks += self._end_text()
            self._open_field = field
            chunks.append(self.blocks.start("text", "thinking" if field in REASONING_FIELDS else "text"))
        return chunks + self.blocks.add("text", text)

    def _end_text(self) -> list[StreamChunk]:
        field, self._open_field = self._open_field, None
        if field is None:
            return []
        text = self.blocks.text("text")
        more: dict[str, Any] = {}
        if field in REASONING_FIELDS:
            more = {"reasoning_field": field}  # where it goes back to
            return [self.blocks.end("text", ThinkingBlock(thinking=text, **more))]
        if field == "refusal":
            more = {"refusal": True}
        return [self.blocks.end("text", TextBlock(text=text, **more))]

    def _add_call(self, piece: dict[str, Any]) -> list[StreamChunk]:
        function = piece.get("function") or {}
        index, call_id, name = piece.get("index"), piece.get("id"), function.get("name")
        number = self._by_index.get(index) if index is not None else max(self._calls, default=None)
        known = None if number is None else self._calls[number]
        is_new = known is None or bool(call_id and known.id and call_id != known.id)
        chunks: list[StreamChunk] = []
        if is_new or number is None or known is None:
            chunks += self._end_text()
            number = len(self._calls)
            known = self._calls[number] = _Call(call_id, name or "")
            self._by_index[index] = number
            chunks.append(self.blocks.start(("call", number), "tool_call", name))
        known.id = known.id or call_id
        known.name = known.name or name or ""
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        return chunks + (self.blocks.add(("call", number), arguments) if arguments else [])
