"""The chunks that a streaming provider yields, and at the end the whole response."""

from __future__ import annotations

from typing import Literal, TypeAlias

from amplifier.models._definition.base import Model
from amplifier.models._definition.decorator import model

from ._chat import ChatResponse
from ._content import ContentBlockUnion

StreamKind: TypeAlias = Literal["block_start", "block_delta", "block_end", "response"]
"""What a chunk is about; ``response`` is always the last one."""


@model
class StreamChunk(Model):
    """One chunk of a streamed response.

    Attributes:
        kind: What it is about.
        index: The index of the content block.
        block_type: The block's type, at its start and with its deltas.
        tool_name: At the start of a tool call, the tool, if its name has arrived.
        text: New text of the block, for deltas; arguments of a tool call arrive as JSON text.
        block: The finished block, at its end.
        response: The whole response, in the last chunk.
    """

    kind: StreamKind
    index: int = 0
    block_type: str | None = None
    tool_name: str | None = None
    text: str | None = None
    block: ContentBlockUnion | None = None
    response: ChatResponse | None = None
