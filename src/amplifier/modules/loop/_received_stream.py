"""Live text of published providers, which have no ``stream``: while ``complete`` runs they emit ``llm:stream_block_start``,
``llm:stream_block_delta`` and ``llm:stream_block_end``. Here these events become the chunks of a stream.

A provider that asks its service again by itself emits the new answer under a new ``request_id``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from amplifier.contracts import Hooks
from amplifier.events import LLM_STREAM_BLOCK_DELTA, LLM_STREAM_BLOCK_START
from amplifier.models import ChatResponse, StreamChunk, TextBlock

_receiving: ContextVar[ReceivedStream | None] = ContextVar("amplifier_received_stream", default=None)
_OURS = {"tool_use": "tool_call"}


class ReceivedStream:
    """What a provider emits of one answer; what is emitted for other calls, such as those of a hook, is not taken.

    Args:
        hooks: Where it emits.
        begin: Called when an answer begins.
        take: Called with each chunk.
    """

    def __init__(self, hooks: Hooks, begin: Callable[[], None], take: Callable[[StreamChunk], Awaitable[None]]) -> None:
        self._hooks = hooks
        self._begin = begin
        self._take = take
        self._request: Any = None
        self._blocks: dict[int, str] = {}  # the types of those that have begun

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Listen during a call."""
        handlers = {LLM_STREAM_BLOCK_START: self._start, LLM_STREAM_BLOCK_DELTA: self._delta}
        removers = [self._hooks.register(event, handler, name="live text") for event, handler in handlers.items()]
        outer = _receiving.set(self)
        try:
            yield
        finally:
            _receiving.reset(outer)
            for remove in removers:
                remove()

    async def _start(self, _: str, data: dict[str, Any]) -> None:
        index, kind = data.get("block_index"), str(data.get("block_type"))
        if _receiving.get() is not self or not isinstance(index, int):
            return
        if data.get("request_id") != self._request or not self._blocks:
            self._request = data.get("request_id")
            self._blocks.clear()
            self._begin()
        self._blocks[index] = kind = _OURS.get(kind, kind)
        name = data.get("name")
        await self._take(
            StreamChunk(
                kind="block_start", index=index, block_type=kind, tool_name=name if isinstance(name, str) else None
            )
        )

    async def _delta(self, _: str, data: dict[str, Any]) -> None:
        index, text = data.get("block_index"), data.get("text")
        if _receiving.get() is self and index in self._blocks and isinstance(text, str):
            await self._take(StreamChunk(kind="block_delta", index=index, block_type=self._blocks[index], text=text))

    def ends(self, response: ChatResponse) -> list[StreamChunk]:
        """The chunks that end the blocks, which only the response has whole; those that were not streamed come as one piece."""
        open_blocks, free, chunks = sorted(self._blocks.items()), max(self._blocks, default=-1) + 1, []
        for block in response.content:
            known = next((item for item in open_blocks if item[1] == block.type), None)
            if known is not None:
                open_blocks.remove(known)
                index = known[0]
            else:
                index, free = free, free + 1
                chunks.append(StreamChunk(kind="block_start", index=index, block_type=block.type))
                if isinstance(block, TextBlock) and block.text:
                    chunks.append(StreamChunk(kind="block_delta", index=index, block_type="text", text=block.text))
            chunks.append(StreamChunk(kind="block_end", index=index, block_type=block.type, block=block))
        return chunks

    @property
    def has_text(self) -> bool:
        """Whether anything was streamed."""
        return bool(self._blocks)
