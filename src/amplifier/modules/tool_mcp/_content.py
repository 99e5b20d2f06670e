"""Results of the protocol as results of tools: text, images, audio, structured values, and notes for what a model cannot read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from amplifier.errors import ModelError
from amplifier.models import ImageBlock, TextBlock, ToolResult, UnknownBlock, from_dict

from .._tool_base import shown

_Block: TypeAlias = TextBlock | ImageBlock | UnknownBlock


def as_tool_result(result: CallToolResult, *, longest: int, failure: str) -> ToolResult:
    """The result of a call.

    Args:
        result: The server's.
        longest: Characters of text for the model; the rest is cut with a note.
        failure: The message of a failed call without text.
    """
    blocks = _blocks(result.content)
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if result.is_error:
        message = _cut(text or failure, longest)
        return ToolResult(success=False, output=message, error={"message": shown(message, 4000), "type": "ToolError"})
    if not all(isinstance(block, TextBlock) for block in blocks):
        return _with_media(blocks, result.structured_content, longest)
    output: Any = text
    structured = result.structured_content
    if structured is not None and structured != {"result": text}:  # how the Python SDK wraps a plain text
        output = structured if not text or _is_same(text, structured) else {"text": text, "structured": structured}
    size = len(output) if isinstance(output, str) else len(json.dumps(output, ensure_ascii=False))
    if size > longest:
        output = _cut(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False), longest)
    return ToolResult(output=output)


def as_resource_result(result: ReadResourceResult, *, longest: int) -> ToolResult:
    """The content of a resource."""
    blocks = [_resource_block(content) for content in result.contents]
    if not all(isinstance(block, TextBlock) for block in blocks):
        return _with_media(blocks, None, longest)
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return ToolResult(output=_cut(text, longest))


def as_prompt_result(result: GetPromptResult, *, longest: int) -> ToolResult:
    """The messages of a prompt."""
    blocks: list[_Block] = []
    for message in result.messages:
        for block in _blocks([message.content]):
            blocks.append(TextBlock(text=f"{message.role}: {block.text}") if isinstance(block, TextBlock) else block)
    if not all(isinstance(block, TextBlock) for block in blocks):
        return _with_media(blocks, None, longest)
    return ToolResult(output=_cut("\n\n".join(block.text for block in blocks if isinstance(block, TextBlock)), longest))


def _with_media(blocks: list[_Block], structured: Any, longest: int) -> ToolResult:
    """Text, images and audio in their order; hooks and logs see a note for each image and for audio."""
    shortened: list[_Block] = []
    left = longest
    for block in blocks:
        if isinstance(block, TextBlock):
            shortened.append(TextBlock(text=_cut(block.text, left)))
            left = max(0, left - len(block.text))
        else:
            shortened.append(block)
    if structured is not None:
        shortened.append(TextBlock(text=_cut(json.dumps(structured, ensure_ascii=False), left)))
    notes = [block.text if isinstance(block, TextBlock) else f"[{_media_type(block)}]" for block in shortened]
    return ToolResult(output="\n".join(notes), content=shortened)


def _blocks(content: Sequence[ContentBlock]) -> list[_Block]:
    return [_block(block) for block in content]


def _block(block: ContentBlock) -> _Block:
    if isinstance(block, TextContent):
        return TextBlock(text=_clean(block.text))
    if isinstance(block, ImageContent):
        return _media("image", block.mime_type, block.data)
    if isinstance(block, AudioContent):
        return _media("audio", block.mime_type, block.data)
    if isinstance(block, ResourceLink):
        about = f": {shown(block.description)}" if block.description else ""
        return TextBlock(text=f"[resource {shown(str(block.uri))} ({shown(block.name)}){about}]")
    assert isinstance(block, EmbeddedResource)
    return _resource_block(block.resource)


def _resource_block(resource: TextResourceContents | BlobResourceContents) -> _Block:
    if isinstance(resource, TextResourceContents):
        return TextBlock(text=_clean(resource.text))
    media_type = resource.mime_type or "application/octet-stream"
    kind = media_type.partition("/")[0]
    if kind in ("image", "audio"):
        return _media(kind, media_type, resource.blob)
    return _note(f"resource {shown(str(resource.uri))}", media_type, resource.blob)


def _media(kind: str, media_type: str, data: str) -> _Block:
    source = {"type": "base64", "media_type": media_type, "data": data}
    try:
        content = from_dict(ToolResult, {"content": [{"type": kind, "source": source}]}).content
    except ModelError:
        content = None
    return content[0] if content else _note(f"unreadable {kind}", media_type, data)


def _media_type(block: ImageBlock | UnknownBlock) -> str:
    source = block.source if isinstance(block, ImageBlock) else block.extra["source"]
    return str(source["media_type"])


def _note(what: str, media_type: str, data: str) -> TextBlock:
    return TextBlock(text=f"[{what}: {shown(media_type, 80)}, {len(data) * 3 // 4} bytes, left out]")


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _is_same(text: str, structured: Any) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(value in (structured, structured.get("result")))


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[… cut: the result has {len(text)} characters, the first {longest} are shown …]"
