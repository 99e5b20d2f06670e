"""Results of the protocol as results of tools: text, images, structured values, and notes for what a model cannot read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
from amplifier.models import ImageBlock, TextBlock, ToolResult

from .._tool_base import shown


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
    if any(isinstance(block, ImageBlock) for block in blocks):
        return _with_images(blocks, result.structured_content, longest)
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
    if any(isinstance(block, ImageBlock) for block in blocks):
        return _with_images(blocks, None, longest)
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return ToolResult(output=_cut(text, longest))


def as_prompt_result(result: GetPromptResult, *, longest: int) -> ToolResult:
    """The messages of a prompt."""
    blocks: list[TextBlock | ImageBlock] = []
    for message in result.messages:
        for block in _blocks([message.content]):
            blocks.append(TextBlock(text=f"{message.role}: {block.text}") if isinstance(block, TextBlock) else block)
    if any(isinstance(block, ImageBlock) for block in blocks):
        return _with_images(blocks, None, longest)
    return ToolResult(output=_cut("\n\n".join(block.text for block in blocks if isinstance(block, TextBlock)), longest))


def _with_images(blocks: list[TextBlock | ImageBlock], structured: Any, longest: int) -> ToolResult:
    """Text and images in their order; hooks and logs see a note for each image."""
    shortened: list[TextBlock | ImageBlock] = []
    left = longest
    for block in blocks:
        if isinstance(block, TextBlock):
            shortened.append(TextBlock(text=_cut(block.text, left)))
            left = max(0, left - len(block.text))
        else:
            shortened.append(block)
    if structured is not None:
        shortened.append(TextBlock(text=_cut(json.dumps(structured, ensure_ascii=False), left)))
    notes = [block.text if isinstance(block, TextBlock) else f"[{block.source['media_type']}]" for block in shortened]
    return ToolResult(output="\n".join(notes), content=shortened)


def _blocks(content: Sequence[ContentBlock]) -> list[TextBlock | ImageBlock]:
    return [_block(block) for block in content]


def _block(block: ContentBlock) -> TextBlock | ImageBlock:
    if isinstance(block, TextContent):
        return TextBlock(text=_clean(block.text))
    if isinstance(block, ImageContent):
        return _image(block.mime_type, block.data)
    if isinstance(block, AudioContent):
        return _note("audio", block.mime_type, block.data)
    if isinstance(block, ResourceLink):
        about = f": {shown(block.description)}" if block.description else ""
        return TextBlock(text=f"[resource {shown(str(block.uri))} ({shown(block.name)}){about}]")
    assert isinstance(block, EmbeddedResource)
    return _resource_block(block.resource)


def _resource_block(resource: TextResourceContents | BlobResourceContents) -> TextBlock | ImageBlock:
    if isinstance(resource, TextResourceContents):
        return TextBlock(text=_clean(resource.text))
    media_type = resource.mime_type or "application/octet-stream"
    if media_type.startswith("image/"):
        return _image(media_type, resource.blob)
    return _note(f"resource {shown(str(resource.uri))}", media_type, resource.blob)


def _image(media_type: str, data: str) -> TextBlock | ImageBlock:
    source = {"type": "base64", "media_type": media_type, "data": data}
    try:
        content = ToolResult(content=[ImageBlock(source=source)]).content
    except ModelError:
        return _note("unreadable image", media_type, data)
    return content[0] if content else _note("unreadable image", media_type, data)


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
