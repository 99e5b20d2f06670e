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

__all__ = ["client_files", "mcp_servers", "page_wanted", "read_prompt", "session_id", "working_directory"]

T = TypeVar("T", bound=attrs.AttrsInstance)


def _directory(value: str) -> Path:
    if not Path(value).is_dir():
        raise PlanError([("$", f"{value!r:.200} is not a directory")])
    return Path(value)


_text = attrs.evolve(any_text, expected="a text")
_working_directory = Kind(
    "the absolute path of a directory",
    lambda value: isinstance(value, str) and "\0" not in value and Path(value).is_absolute(),
    _directory,
)
_cursor = Kind(
    "the nextCursor of an earlier answer",
    lambda value: isinstance(value, str) and value.isdecimal() and len(value) < 10,
    int,
)
_transport = Kind("stdio or http", lambda value: value in ("stdio", "http"))


@attrs.frozen(kw_only=True)
class _Greeting:
    version: int = option(whole_number(), key="protocolVersion")
    capabilities: dict[str, Any] | None = option(optional(mapping), None, key="clientCapabilities")


@attrs.frozen(kw_only=True)
class _Page:
    cursor: int | None = option(optional(_cursor), None)
    cwd: str | None = option(optional(_text), None)


@attrs.frozen(kw_only=True)
class _OfSession:
    session_id: str = option(attrs.evolve(_text, convert=validate_session_id), key="sessionId")


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
    type: str = option(_transport, "stdio")
    command: str = option(_text, "")
    args: tuple[str, ...] = option(list_of("texts", lambda item: isinstance(item, str)), ())
    env: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())
    url: str = option(_text, "")
    headers: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())


@attrs.frozen(kw_only=True)
class _Opening:
    cwd: Path = option(_working_directory)
    servers: tuple[_Server, ...] = option(_secret_list("servers", _Server), (), key="mcpServers")


@attrs.frozen(kw_only=True)
class _Prompt:
    prompt: tuple[dict[str, Any], ...] = option(
        list_each("content blocks", Kind("a content block", lambda value: isinstance(value, dict)))
    )


def _read(cls: type[T], params: Mapping[str, Any]) -> T:
    try:
        read: T = record(cls, is_open=True).read(params)
    except PlanError as error:
        problems = "; ".join(
            f"{path.removeprefix('$').removeprefix('.')}: {problem}" for path, problem in error.problems
        )
        raise RpcError(INVALID_PARAMS, problems) from None
    return read


def client_files(params: Mapping[str, Any]) -> frozenset[str]:
    """What of ``fs`` a client can do, by the names of its capabilities; the ``protocolVersion`` only has to be one."""
    said = (_read(_Greeting, params).capabilities or {}).get("fs")
    return frozenset(name for name, can in (said.items() if isinstance(said, dict) else ()) if can is True)


def page_wanted(params: Mapping[str, Any]) -> tuple[int, str | None]:
    """The first session of a page, and the directory that its sessions were begun in."""
    page = _read(_Page, params)
    return page.cursor or 0, page.cwd


def session_id(params: Mapping[str, Any]) -> str:
    """The ``sessionId``."""
    return _read(_OfSession, params).session_id


def working_directory(params: Mapping[str, Any]) -> Path:
    """The ``cwd``: an absolute path of a directory that exists."""
    return _read(_Opening, params).cwd


def mcp_servers(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The ``mcpServers`` by name, in the form in which a plan has them."""
    found: dict[str, dict[str, Any]] = {}
    for index, server in enumerate(_read(_Opening, params).servers):
        where = f"mcpServers[{index}]"
        if not server.name or server.name in found:
            problem = f"expected a name that no other server has, got {server.name!r:.80}"
            raise RpcError(INVALID_PARAMS, f"{where}.name: {problem}")
        address = "command" if server.type == "stdio" else "url"
        if not getattr(server, address):
            raise RpcError(INVALID_PARAMS, f"{where}.{address}: expected a text")
        pairs = {pair.name: pair.value for pair in (server.env if server.type == "stdio" else server.headers)}
        entry: dict[str, Any] = {address: getattr(server, address)}
        if server.type == "stdio" and server.args:
            entry["args"] = list(server.args)
        if pairs:
            entry["env" if server.type == "stdio" else "headers"] = pairs
        found[server.name] = entry
    return found


def read_prompt(params: Mapping[str, Any]) -> tuple[str, list[str | dict[str, Any]]]:
    """The ``prompt``: its text, with the files that the editor embeds; and all of it in order, if it is more than text."""
    parts: list[str | dict[str, Any]] = []
    for index, block in enumerate(_read(_Prompt, params).prompt):
        part = _part(block, f"prompt[{index}]")
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            part = f"{parts.pop()}\n{part}"
        parts.append(part)
    text = "\n".join(part for part in parts if isinstance(part, str))
    if not text.strip():
        raise RpcError(INVALID_PARAMS, "prompt: expected some text, got none")
    return text, [] if parts == [text] else parts


def _part(block: dict[str, Any], where: str) -> str | dict[str, Any]:
    kind, resource = block.get("type"), block.get("resource")
    text, uri = block.get("text"), block.get("uri")
    if kind == "image":
        return _media("image", block.get("mimeType"), block.get("data"), where)
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("blob"), str):
        media_type = resource.get("mimeType")
        is_image = isinstance(media_type, str) and media_type.startswith("image/")
        return _media("image" if is_image else "document", media_type, resource["blob"], where)
    if kind == "text" and isinstance(text, str):
        return text
    if kind == "resource_link" and isinstance(uri, str):
        return f"[{block.get('name') or 'resource'}]({uri})"
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return f'<resource uri="{resource.get("uri") or "unknown"}">\n{resource["text"]}\n</resource>'
    raise RpcError(
        INVALID_PARAMS,
        f"{where}: expected a block of type text with text, resource_link with uri, image with data, or resource with text or "
        f"blob, got {kind!r:.80}; audio is not among the capabilities of this agent",
    )


def _media(kind: str, media_type: Any, data: Any, where: str) -> dict[str, Any]:
    block = {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}
    try:
        models.read_prompt([block])
    except (TypeError, ValueError) as error:
        raise RpcError(INVALID_PARAMS, f"{where}: {error}") from None
    return block
