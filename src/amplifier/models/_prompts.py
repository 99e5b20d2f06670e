"""Prompts of more than text: files as content blocks, and the rules for the list that a session takes as a prompt.

A PDF is an `UnknownBlock` of the type ``document``, in the form of Anthropic's API: a class of its own would refuse what transcripts
hold under that type today. A text file is text, so that every model reads it and every hook sees it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from amplifier._json import join_paths, visible_text
from amplifier._regular_file import read_file
from amplifier.errors import ModelError

from ._base import Model
from ._json_text import from_dict, to_dict
from ._messages import ContentBlockUnion, ImageBlock, TextBlock, UnknownBlock, is_base64

Prompt: TypeAlias = str | Sequence[str | TextBlock | ImageBlock | UnknownBlock | Mapping[str, Any]]
"""What a session takes as a prompt: text, or a list of texts and of text, image and document blocks."""

PDF = "application/pdf"

_MOST_BYTES = 10 << 20
_LONGEST_TITLE = 200
_EXPECTED = "expected an image (PNG, JPEG, GIF, WebP), a PDF or text in UTF-8"
_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)


def media_type(head: bytes) -> str | None:
    """The media type of an image or a PDF, by its first bytes; None for everything else."""
    for magic, kind in _TYPES:
        if head.startswith(magic):
            return kind
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def file(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    name: str | None = None,
    max_bytes: int = _MOST_BYTES,
) -> TextBlock | ImageBlock | UnknownBlock:
    """Make a block of a file, as a part of a prompt.

        await session.execute(["What does this show?", file("chart.png")])

    What it is follows from its content, not from its name. The file is read at once, in the calling thread.

    Args:
        source: The path of the file, or its content.
        name: What the model is told that its name is; left out, the last part of the path.
        max_bytes: The size that is not exceeded. Services have limits of their own, often 5 MB for an image and 32 MB for a request.

    Returns:
        An image block, a document block (PDF), or a text block with the name and the text of the file.

    Raises:
        OSError: There is no such file, it is no regular file or too large, or the system refuses.
        ValueError: It is empty or of another type, or there are too many bytes.
    """
    given: tuple[Any, Any] = (name, max_bytes)
    if not isinstance(given[0], str | None) or type(given[1]) is not int:
        raise TypeError(f"expected name as a text and max_bytes as a whole number, got {given!r:.80}")
    if isinstance(source, bytes | bytearray | memoryview):
        data, title = bytes(source), name or ""
        if len(data) > max_bytes:
            raise ValueError(f"{_named(title)} has {len(data)} bytes, expected at most {max_bytes}; see max_bytes")
    else:
        if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
            raise ValueError(
                f"expected the path of a file, got the URL {source!r:.80}; an image on the web is "
                'ImageBlock(source={"type": "url", "url": ...})'
            )
        path = Path(source)
        data, title = read_file(path, most=max_bytes), path.name if name is None else name
    title = visible_text(title, multiline=False)[:_LONGEST_TITLE]
    if not data:
        raise ValueError(f"{_named(title)} is empty; {_EXPECTED}")
    named = {"title": title} if title else {}
    kind = media_type(data[:16])
    if kind is None:
        return TextBlock(text=_as_text(data, title))
    encoded = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode("ascii")}
    block: ImageBlock | UnknownBlock = ImageBlock(source=encoded)
    if kind == PDF:
        block = UnknownBlock(type="document")
        block.extra["source"] = encoded
    block.extra |= named
    return block


def _as_text(data: bytes, title: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{_named(title)} begins with {data[:8]!r}; {_EXPECTED}: convert it first")
    shown = title.replace('"', "'")
    return f'<file name="{shown}">\n{text}\n</file>' if shown else f"<file>\n{text}\n</file>"


def _named(title: str) -> str:
    return f"the file {title!r}" if title else "the content"


# ── the list ─────────────────────────────────────────────────────────────────────────────────────


def read_prompt(prompt: Any) -> str | list[dict[str, Any]]:
    """A prompt as it is passed on: text as it is, a list as blocks in their JSON form.

    Raises:
        TypeError: It is neither, or has a part that is neither text nor a block.
        ValueError: A block is wrong, or of a type that a prompt cannot have; a text cannot be encoded.
    """
    if isinstance(prompt, str):
        return _checked(prompt, "prompt")
    if not isinstance(prompt, (list, tuple)):
        hint = "; put it in a list" if isinstance(prompt, Model) else ""
        raise TypeError(
            f"a prompt must be a str, or a list of str and content blocks, got {type(prompt).__name__}: {prompt!r:.80}{hint}"
        )
    if not prompt:
        raise ValueError("a prompt must not be an empty list; expected str and content blocks in it")
    return [_read_part(part, f"prompt[{place}]") for place, part in enumerate(prompt)]


def _checked(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"lone surrogate at position {error.start}; expected text that can be encoded as UTF-8"
            raise ModelError([(where, problem)], subject="prompt") from None
    return text


def _read_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": _checked(part, where)}
    if not isinstance(part, (Model, Mapping)):
        hint = "; amplifier.file(...) makes a block of a file" if isinstance(part, (bytes, os.PathLike)) else ""
        raise TypeError(f"{where}: expected a str or a content block, got {type(part).__name__}: {part!r:.80}{hint}")
    try:
        block = part if isinstance(part, Model) else from_dict(ContentBlockUnion, dict(part))
        written: dict[str, Any] = to_dict(block)
    except ModelError as error:
        problems = [(join_paths(where, path), problem) for path, problem in error.problems]
        raise ModelError(problems, subject="prompt") from None
    kind = written.get("type")
    if kind in ("image", "document"):
        if problem := _problem_of_source(written.get("source")):
            raise ModelError([(f"{where}.source", problem)], subject="prompt")
    elif kind != "text":
        raise ModelError(
            [(f"{where}.type", f"expected 'text', 'image' or 'document', got {kind!r:.80}")], subject="prompt"
        )
    return written


def _problem_of_source(source: Any) -> str | None:
    """Checked here: what a service refuses would be in every later request, too."""
    form = source.get("type") if isinstance(source, Mapping) else None
    if form == "url":
        url = source.get("url")
        is_right = isinstance(url, str) and url.startswith(("http://", "https://"))
        return None if is_right else f"expected a url that begins with https:// or http://, got {url!r:.80}"
    if form != "base64":
        return f"expected a dict with the type 'base64' or 'url', got {form or source!r:.80}"
    if not isinstance(source.get("media_type"), str) or "/" not in source["media_type"]:
        return f"expected a media_type such as 'image/png', got {source.get('media_type')!r:.80}"
    problem = "expected data in standard base64 with padding; amplifier.file(...) makes it"
    return None if is_base64(source.get("data")) else problem


def text_of_prompt(blocks: Iterable[Mapping[str, Any]]) -> str:
    """The texts of a prompt in blocks, with an empty line between two."""
    return "\n\n".join(block["text"] for block in blocks if block.get("type") == "text")


def changed_blocks(blocks: list[dict[str, Any]], data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A prompt in blocks as hooks have left it in the payload of ``prompt:submit``.

    A text that they changed takes the place of all texts; an attachment that they left out is left out, and a title that they
    changed is changed.
    """
    given = text_of_prompt(blocks)
    text, shown = str(data.get("prompt", given)), data.get("attachments", attachments_of(blocks))
    described = [each for each in shown if isinstance(each, dict)] if isinstance(shown, list) else []
    kept: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        about = next((each for each in described if each.get("index") == at), None)
        if block["type"] == "text":
            kept += [block] if text == given else []
        elif about is not None:
            kept.append({**block, "title": str(about.get("title", block["title"]))} if "title" in block else block)
    return [{"type": "text", "text": text}, *kept] if text and text != given and blocks else kept


def attachments_of(blocks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is not text in a prompt, described for events: ``index`` in the list, type, title, media type and size or address."""
    described: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if block.get("type") == "text":
            continue
        source = block["source"]
        about: dict[str, Any] = {"index": index, "type": block["type"]}
        if isinstance(title := block.get("title"), str):
            about["title"] = title[:_LONGEST_TITLE]
        if source["type"] == "url":
            about["url"] = source["url"][:_LONGEST_TITLE]
        else:
            data = source["data"]
            about |= {"media_type": source["media_type"], "bytes": len(data) // 4 * 3 - data[-2:].count("=")}
        described.append(about)
    return described
