"""The parameters of requests as classes: a wrong one is an error that names it. Members that are not known are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from amplifier._reading import (
    Kind,
    any_text,
    list_each,
    list_of,
    mapping,
    option,
    optional,
    record,
    secret,
    whole_number,
)
from amplifier.errors import PlanError
from amplifier.models import _prompts as models
from amplifier.plan import validate_session_id

from ._connection import INVALID_PARAMS, RpcError

T = TypeVar("T", bound=attrs.AttrsInstance)


def read_params(cls: type[T], params: Mapping[str, Any]) -> T:
    """The parameters of a request; every one that does not fit is named."""
    try:
        read: T = record(cls, is_open=True).read(params)
    except PlanError as error:
        problems = "; ".join(
            f"{path.removeprefix('$').removeprefix('.')}: {problem}" for path, problem in error.problems
        )
        raise RpcError(INVALID_PARAMS, problems) from None
    return read


@attrs.frozen(kw_only=True)
class Greeting:
    """Of ``initialize``; the version only has to be one."""

    version: int = option(whole_number(), key="protocolVersion")
    capabilities: dict[str, Any] | None = option(optional(mapping), None, key="clientCapabilities")

    @property
    def files(self) -> frozenset[str]:
        """What of ``fs`` the client can do, by the names of its capabilities."""
        said = (self.capabilities or {}).get("fs")
        return frozenset(name for name, can in (said.items() if isinstance(said, dict) else ()) if can is True)


# ── sessions ──

_text = attrs.evolve(any_text, expected="a text")


@attrs.frozen(kw_only=True)
class OfSession:
    """A request about a session."""

    session_id: str = option(attrs.evolve(_text, convert=validate_session_id), key="sessionId")


def _is_cursor(value: Any) -> bool:
    return isinstance(value, str) and value.isdecimal() and len(value) < 10


@attrs.frozen(kw_only=True)
class Page:
    """A part of the list of sessions: from the cursor on, those that were begun in this directory."""

    cursor: int | None = option(optional(Kind("the nextCursor of an earlier answer", _is_cursor, int)), None)
    cwd: str | None = option(optional(_text), None)


@attrs.frozen(kw_only=True)
class _Pair:
    name: str = option(secret)  # a message repeats neither: a client may have put the secret in the wrong place
    value: str = option(secret)


def _secret_list(plural: str, cls: type[attrs.AttrsInstance]) -> Kind:
    """A list of objects; a message repeats nothing of what was given in its place."""
    each = attrs.evolve(record(cls, is_open=True), is_secret=True)
    return attrs.evolve(list_each(plural, each), is_secret=True)


@attrs.frozen(kw_only=True)
class _Server:
    name: str = option(_text)
    type: str = option(Kind("stdio or http", lambda value: value in ("stdio", "http")), "stdio")
    command: str = option(_text, "")
    args: tuple[str, ...] = option(list_of("texts", lambda item: isinstance(item, str)), ())
    env: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())
    url: str = option(_text, "")
    headers: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())

    def entry(self) -> dict[str, Any]:
        """The server as a plan has it; its address may be empty."""
        pairs = {pair.name: pair.value for pair in (self.env if self.type == "stdio" else self.headers)}
        if self.type == "http":
            return {"url": self.url, **({"headers": pairs} if pairs else {})}
        args = {"args": list(self.args)} if self.args else {}
        return {"command": self.command, **args, **({"env": pairs} if pairs else {})}


_server_list = _secret_list("servers", _Server)


def _servers(given: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for index, server in enumerate(_server_list.convert(given)):
        if not server.name or server.name in found:
            problem = f"expected a name that no other server has, got {server.name!r:.80}"
            raise PlanError([(f"$[{index}].name", problem)])
        found[server.name] = server.entry()
        address = next(iter(found[server.name]))
        if not found[server.name][address]:
            raise PlanError([(f"$[{index}].{address}", "expected a text")])
    return found


def _directory(value: str) -> Path:
    if not Path(value).is_dir():
        raise PlanError([("$", f"{value!r:.200} is not a directory")])
    return Path(value)


@attrs.frozen(kw_only=True)
class Opening:
    """Where a session works, and MCP servers for it, by name, in the form in which a plan has them."""

    cwd: Path = option(
        Kind(
            "the absolute path of a directory",
            lambda value: isinstance(value, str) and "\0" not in value and Path(value).is_absolute(),
            _directory,
        )
    )
    servers: dict[str, dict[str, Any]] = option(
        attrs.evolve(_server_list, convert=_servers), attrs.Factory(dict), key="mcpServers"
    )


# ── turns ──


def _parts(blocks: Any) -> list[str | dict[str, Any]]:
    parts: list[str | dict[str, Any]] = []
    for part in _blocks.convert(blocks):
        is_more = isinstance(part, str) and parts and isinstance(parts[-1], str)
        parts.append(f"{parts.pop()}\n{part}" if is_more else part)
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise PlanError([("$", "expected some text, got none")])
    return parts


def _part(block: dict[str, Any]) -> str | dict[str, Any]:
    kind, resource = block.get("type"), block.get("resource")
    text, uri = block.get("text"), block.get("uri")
    if kind == "image":
        return _media("image", block.get("mimeType"), block.get("data"))
    if kind == "text" and isinstance(text, str):
        return text
    if kind == "resource_link" and isinstance(uri, str):
        return f"[{block.get('name') or 'resource'}]({uri})"
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("blob"), str):
        media_type = resource.get("mimeType")
        is_image = isinstance(media_type, str) and media_type.startswith("image/")
        return _media("image" if is_image else "document", media_type, resource["blob"])
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return f'<resource uri="{resource.get("uri") or "unknown"}">\n{resource["text"]}\n</resource>'
    expected = "a block of type text with text, resource_link with uri, image with data, or resource with text or blob"
    advice = "audio is not among the capabilities of this agent"
    raise PlanError([("$", f"expected {expected}, got {kind!r:.80}; {advice}")])


def _media(kind: str, media_type: Any, data: Any) -> dict[str, Any]:
    block = {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}
    try:
        models.read_prompt([block])
    except (TypeError, ValueError) as error:
        raise PlanError([("$", str(error))]) from None
    return block


_blocks = list_each("content blocks", Kind("a content block", lambda value: isinstance(value, dict), _part))


@attrs.frozen(kw_only=True)
class Prompt:
    """What the user says, in order: text, with the files that the editor embeds, and images."""

    parts: list[str | dict[str, Any]] = option(attrs.evolve(_blocks, convert=_parts), key="prompt")
