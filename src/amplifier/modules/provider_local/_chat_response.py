"""Decodes the server's events into chunks and, at the end, a response."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import attrs

from amplifier.errors import InvalidToolCallError, StreamError
from amplifier.models import ChatResponse, StreamChunk, TextBlock, ThinkingBlock, ToolCall, ToolCallBlock, Usage

from .._local_answers import fresh_id


@attrs.define
class Lines:
    """Splits the stream into lines and parses the events in them."""

    _rest: bytes = b""

    def take(self, piece: bytes) -> Iterator[Mapping[str, Any]]:
        """Events that are complete with these bytes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if not data or data == b"[DONE]":
                continue
            try:
                event = json.loads(data)
            except ValueError:  # truncated by a dying server: the decoder reports the unfinished stream
                continue
            if isinstance(event, dict):
                yield event


@attrs.define
class _Block:
    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    number: int = 0


@attrs.define
class Decoder:
    """Decodes events in order; text, reasoning and calls become blocks in the order they begin.

    Attributes:
        model: For errors.
        taken: Ids of tool calls in the conversation.
    """

    model: str
    taken: set[str]
    usage: Usage | None = None
    finish_reason: str | None = None
    _blocks: list[_Block] = attrs.field(factory=list)
    _finished: list[Any] = attrs.field(factory=list)

    @property
    def has_begun(self) -> bool:
        """Whether any part of a response was received."""
        return bool(self._blocks)

    def take(self, event: Mapping[str, Any]) -> Iterator[StreamChunk]:
        """Chunks of one event."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = _usage(usage)
        for choice in _objects(event.get("choices")):
            delta = choice.get("delta")
            if isinstance(delta, dict):
                yield from self._delta(delta)
            if choice.get("finish_reason"):
                self.finish_reason = str(choice["finish_reason"])

    def finish(self) -> Iterator[StreamChunk]:
        """The end of the last block, and the response.

        Raises:
            StreamError: The response is not complete.
            InvalidToolCallError: The arguments of a call are not a JSON object.
        """
        if self.finish_reason is None:
            raise StreamError(
                "the model server ended its stream in the middle of an answer", provider="local", model=self.model
            )
        yield from self._close()
        calls = [
            ToolCall(id=block.id, name=block.name, arguments=dict(block.input))
            for block in self._finished
            if isinstance(block, ToolCallBlock)
        ]
        yield StreamChunk(
            kind="response",
            response=ChatResponse(
                content=self._finished,
                tool_calls=calls or None,
                usage=self.usage or Usage(input_tokens=0, output_tokens=0, total_tokens=0, cost_usd=Decimal(0)),
                finish_reason="tool_calls" if calls else self.finish_reason,
            ),
        )

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[StreamChunk]:
        for kind, key in (("thinking", "reasoning_content"), ("text", "content")):
            text = delta.get(key)
            if isinstance(text, str) and text:
                yield from self._append(kind, text)
        for call in _objects(delta.get("tool_calls")):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            number = call.get("index") if isinstance(call.get("index"), int) else 0
            yield from self._append("tool_call", str(function.get("arguments") or ""), number=int(number or 0))
            block = self._blocks[-1]
            block.id = block.id or str(call.get("id") or "")
            block.name += str(function.get("name") or "")

    def _append(self, kind: str, text: str, *, number: int = 0) -> Iterator[StreamChunk]:
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.kind != kind or last.number != number:
            yield from self._close()
            self._blocks.append(_Block(kind, number=number))
            yield StreamChunk(kind="block_start", index=len(self._blocks) - 1, block_type=kind)
        self._blocks[-1].text += text
        if text:
            yield StreamChunk(kind="block_delta", index=len(self._blocks) - 1, block_type=kind, text=text)

    def _close(self) -> Iterator[StreamChunk]:
        if len(self._finished) < len(self._blocks):
            block = self._block(self._blocks[-1])
            self._finished.append(block)
            yield StreamChunk(kind="block_end", index=len(self._blocks) - 1, block_type=block.type, block=block)

    def _block(self, open_block: _Block) -> Any:
        if open_block.kind == "text":
            return TextBlock(text=open_block.text)
        if open_block.kind == "thinking":
            return ThinkingBlock(thinking=open_block.text)
        call_id = fresh_id(open_block.id or f"local_{len(self._finished)}", self.taken)
        self.taken.add(call_id)
        return ToolCallBlock(id=call_id, name=open_block.name, input=self._arguments(open_block))

    def _arguments(self, open_block: _Block) -> dict[str, Any]:
        try:
            parsed = json.loads(open_block.text or "{}")
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise InvalidToolCallError(
                f"the model called {open_block.name!r} with arguments that are no JSON object: {open_block.text[:200]!r}",
                provider="local",
                model=self.model,
                tool_name=open_block.name,
                raw_arguments=open_block.text,
            )
        return parsed


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _usage(given: Mapping[str, Any]) -> Usage:
    input_tokens, output_tokens = _count(given.get("prompt_tokens")), _count(given.get("completion_tokens"))
    details = given.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        cache_read_tokens=cached or None,
        cost_usd=Decimal(0),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
