"""Prompts with more than text: files as content blocks, and the reading of a list as a prompt."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from amplifier._internal.json import JSON, join_paths, visible_text
from amplifier._internal.regular_files import read_file
from amplifier.errors import ModelError

from ._json_text import from_dict, to_dict
from ._messages import ContentBlockUnion, ImageBlock, TextBlock, UnknownBlock, is_base64
from .base import Model

Prompt: TypeAlias = str | Sequence[str | TextBlock | ImageBlock | UnknownBlock | Mapping[str, Any]]
"""The prompt of a turn: text, or a list of texts and of text, image and document blocks."""

PDF = "application/pdf"

_MAX_BYTES = 10 << 20
_MAX_TITLE = 200
_EXPECTED = "expected an image (PNG, JPEG, GIF, WebP), a PDF or text in UTF-8"
_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def media_type(head: bytes) -> str | None:
    """Return the media type of an image or a PDF by its first bytes, and None for other data."""
    for magic, kind in _TYPES:
        if head.startswith(magic):
            return kind
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


# A PDF is an `UnknownBlock` of the type ``document`` in the form of Anthropic's API. A separate
# class would refuse existing blocks of that type in transcripts. A text file is a text block, so
# that every model and every hook can read it.
def file(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    name: str | None = None,
    max_bytes: int = _MAX_BYTES,
) -> TextBlock | ImageBlock | UnknownBlock:
    """Read a file into a content block, as a part of a prompt.

        await session.execute(["What does this show?", file("chart.png")])

    The content decides the type of the block, not the name. The file is read at once, in the
    calling thread.

    Args:
        source: Path of the file, or its content.
        name: Name of the file for the model. None means the last part of the path.
        max_bytes: Maximum size of the file. Services have their own limits, often 5 MB for an image
            and 32 MB for a request.

    Returns:
        An image block, a document block (PDF), or a text block with the name and the text.

    Raises:
        OSError: The file does not exist, is not a regular file, is too large or cannot be read.
        ValueError: The file is empty or of another type, or the content is too large.
    """
    arguments: tuple[object, object] = (name, max_bytes)
    if not isinstance(arguments[0], str | None) or type(arguments[1]) is not int:
        expected = "expected name as a text and max_bytes as a whole number"
        raise TypeError(f"{expected}, got {arguments!r:.80}")
    if isinstance(source, bytes | bytearray | memoryview):
        data, title = bytes(source), name or ""
        if len(data) > max_bytes:
            found = f"{_describe(title)} has {len(data)} bytes"
            raise ValueError(f"{found}, expected at most {max_bytes}; see max_bytes")
    else:
        if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
            raise ValueError(
                f"expected the path of a file, got the URL {source!r:.80}; an image on the web is "
                'ImageBlock(source={"type": "url", "url": ...})'
            )
        path = Path(source)
        data, title = read_file(path, most=max_bytes), path.name if name is None else name
    title = visible_text(title, multiline=False)[:_MAX_TITLE]
    if not data:
        raise ValueError(f"{_describe(title)} is empty; {_EXPECTED}")
    kind = media_type(data[:16])
    if kind is None:
        return TextBlock(text=_as_text(data, title))
    encoded = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode("ascii")}
    block: ImageBlock | UnknownBlock = ImageBlock(source=encoded)
    if kind == PDF:
        block = UnknownBlock(type="document")
        block.extra["source"] = encoded
    if title:
        block.extra["title"] = title
    return block


def _as_text(data: bytes, title: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        found = f"{_describe(title)} begins with {data[:8]!r}"
        raise ValueError(f"{found}; {_EXPECTED}: convert it first")
    attribute = ' name="{}"'.format(title.replace('"', "'")) if title else ""
    return f"<file{attribute}>\n{text}\n</file>"


def _describe(title: str) -> str:
    return f"the file {title!r}" if title else "the content"


# ── reading a prompt ─────────────────────────────────────────────────────────────────────────────


def read_prompt(prompt: object) -> str | list[dict[str, JSON]]:
    """Return the text of a prompt, or its blocks in their JSON form.

    Raises:
        TypeError: The prompt or a part of it is neither text nor a block.
        ValueError: A block is invalid or of a type that a prompt cannot have, or a text cannot be
            encoded.
    """
    if isinstance(prompt, str):
        return _check_text(prompt, "prompt")
    if not isinstance(prompt, (list, tuple)):
        hint = "; put it in a list" if isinstance(prompt, Model) else ""
        found = f"{type(prompt).__name__}: {prompt!r:.80}{hint}"
        raise TypeError(f"a prompt must be a str, or a list of str and content blocks, got {found}")
    if not prompt:
        raise ValueError("a prompt must not be an empty list; expected str and content blocks")
    return [_read_part(part, f"prompt[{index}]") for index, part in enumerate(prompt)]


def _check_text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"lone surrogate at position {error.start}"
            problem = f"{found}; expected text that can be encoded as UTF-8"
            raise ModelError([(path, problem)], subject="prompt") from None
    return text


def _read_part(part: object, path: str) -> dict[str, JSON]:
    if isinstance(part, str):
        return {"type": "text", "text": _check_text(part, path)}
    if not isinstance(part, (Model, Mapping)):
        hint = ""
        if isinstance(part, (bytes, os.PathLike)):
            hint = "; amplifier.file(...) makes a block of a file"
        found = f"{type(part).__name__}: {part!r:.80}{hint}"
        raise TypeError(f"{path}: expected a str or a content block, got {found}")
    try:
        block = part if isinstance(part, Model) else from_dict(ContentBlockUnion, dict(part))
        written: dict[str, JSON] = to_dict(block)
    except ModelError as error:
        problems = [(join_paths(path, inner), problem) for inner, problem in error.problems]
        raise ModelError(problems, subject="prompt") from None
    kind = written.get("type")
    if kind in ("image", "document"):
        # A service that refuses the source would refuse every later request too.
        if problem := _problem_of_source(written.get("source")):
            raise ModelError([(f"{path}.source", problem)], subject="prompt")
    elif kind != "text":
        problem = f"expected 'text', 'image' or 'document', got {kind!r:.80}"
        raise ModelError([(f"{path}.type", problem)], subject="prompt")
    return written


def _problem_of_source(source: JSON) -> str | None:
    form = source.get("type") if isinstance(source, dict) else None
    if form == "url":
        url = source.get("url")
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            return None
        return f"expected a url that begins with https:// or http://, got {url!r:.80}"
    if form != "base64":
        return f"expected a dict with the type 'base64' or 'url', got {form or source!r:.80}"
    media = source.get("media_type")
    if not isinstance(media, str) or "/" not in media:
        return f"expected a media_type such as 'image/png', got {media!r:.80}"
    if not is_base64(source.get("data")):
        return "expected data in standard base64 with padding; amplifier.file(...) makes it"
    return None


# ── prompts in blocks ────────────────────────────────────────────────────────────────────────────


def text_of_prompt(blocks: Iterable[Mapping[str, JSON]]) -> str:
    """Return the texts of a prompt, separated by empty lines."""
    return "\n\n".join(block["text"] for block in blocks if block.get("type") == "text")


def changed_blocks(
    blocks: list[dict[str, JSON]],
    data: Mapping[str, JSON],
) -> list[dict[str, JSON]]:
    """Return a prompt in blocks with the changes of hooks to the payload of ``prompt:submit``.

    A changed text replaces all texts. An attachment that is missing from the payload is removed,
    and a changed title is applied.
    """
    original = text_of_prompt(blocks)
    text = str(data.get("prompt", original))
    attachments = data.get("attachments", attachments_of(blocks))
    listed = attachments if isinstance(attachments, list) else []
    described = [item for item in listed if isinstance(item, dict)]
    kept: list[dict[str, JSON]] = []
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            if text == original:
                kept.append(block)
            continue
        match = next((item for item in described if item.get("index") == index), None)
        if match is None:
            continue
        if "title" in block:
            kept.append({**block, "title": str(match.get("title", block["title"]))})
        else:
            kept.append(block)
    if text and text != original and blocks:
        return [{"type": "text", "text": text}, *kept]
    return kept


def attachments_of(blocks: Iterable[Mapping[str, JSON]]) -> list[dict[str, JSON]]:
    """Return descriptions of the images and documents in a prompt, for events.

    A description has the ``index`` in the prompt, the type, the title, and the media type and size
    or the address.
    """
    descriptions: list[dict[str, JSON]] = []
    for index, block in enumerate(blocks):
        if block.get("type") == "text":
            continue
        source = block["source"]
        description: dict[str, JSON] = {"index": index, "type": block["type"]}
        if isinstance(title := block.get("title"), str):
            description["title"] = title[:_MAX_TITLE]
        if source["type"] == "url":
            description["url"] = source["url"][:_MAX_TITLE]
        else:
            data = source["data"]
            description["media_type"] = source["media_type"]
            description["bytes"] = len(data) // 4 * 3 - data[-2:].count("=")
        descriptions.append(description)
    return descriptions
