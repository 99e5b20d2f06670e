"""The tools that sessions mount: the servers' tools, and two for resources and prompts."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import logging
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator, current_call
from amplifier.errors import ModelError
from amplifier.models import ImageBlock, TextBlock, ToolResult, UnknownBlock, from_dict

from ..._shared.configuration import mapping
from ..._shared.failure import ToolFailure, shown
from .._base import BuiltinTool, characters, option, tool_input
from ._connection import Connection
from ._options import McpOptions, ServerOptions

_MAX_MEDIA = 100
"""Maximum number of images and sounds in one result. Models accept only a few more."""

_Block: TypeAlias = TextBlock | ImageBlock | UnknownBlock


# ── content ───────────────────────────────────────────────────────────────────────────────────────
# Results in the protocol's form become results of tools: text, images, audio and structured values.
# Everything else is replaced with a note.


def as_tool_result(result: CallToolResult, *, limit: int, failure: str) -> ToolResult:
    """Convert the result of a call.

    Args:
        result: The result of the server.
        limit: Maximum number of characters of text. The rest is cut with a note.
        failure: The message of a failed call without text.
    """
    blocks = [_block(block) for block in result.content]
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if result.is_error:
        message = _cut(text or failure, limit)
        return ToolResult(
            success=False,
            output=message,
            error={"message": shown(message, 4000), "type": "ToolError"},
        )
    structured = result.structured_content
    if not all(isinstance(block, TextBlock) for block in blocks):
        values = (
            []
            if structured is None
            else [TextBlock(text=json.dumps(structured, ensure_ascii=False))]
        )
        return _joined([*blocks, *values], "\n", limit)
    if structured is None or list(structured.values()) == [text]:
        # The structured value is the plain text, wrapped in an object.
        return ToolResult(output=_cut(text, limit))
    output = (
        structured
        if not text or _is_same_value(text, structured)
        else {"text": text, "structured": structured}
    )
    return as_json_result(output, limit=limit)


def as_prompt_result(result: GetPromptResult, *, limit: int) -> ToolResult:
    """Convert the messages of a prompt."""
    blocks: list[_Block] = []
    for message in result.messages:
        block = _block(message.content)
        blocks.append(
            TextBlock(text=f"{message.role}: {block.text}")
            if isinstance(block, TextBlock)
            else block
        )
    return _joined(blocks, "\n\n", limit)


def as_json_result(value: dict[str, Any], *, limit: int) -> ToolResult:
    """Return a value as a result. A value that is too long becomes text and is cut."""
    text = json.dumps(value, ensure_ascii=False)
    return ToolResult(output=value if len(text) <= limit else _cut(text, limit))


def _joined(blocks: list[_Block], separator: str, limit: int) -> ToolResult:
    """Join blocks into a result.

    The output is text, with a note for each image or sound. If there are any, the content of the
    result holds the blocks themselves.
    """
    kept: list[_Block] = []
    left, media = limit, 0
    for block in blocks:
        if isinstance(block, TextBlock):
            kept.append(TextBlock(text=_cut(block.text, left)))
            left = max(0, left - len(block.text))
        else:
            media += 1
            if media <= _MAX_MEDIA:
                kept.append(block)
    if media > _MAX_MEDIA:
        kept.append(
            TextBlock(
                text=f"[… cut: the result has {media} images and sounds, {_MAX_MEDIA} are shown …]"
            )
        )
    notes = [
        block.text if isinstance(block, TextBlock) else f"[{_media_type(block)}]"
        for block in blocks
    ]
    return ToolResult(output=_cut(separator.join(notes), limit), content=kept if media else None)


def _block(block: ContentBlock) -> _Block:
    if isinstance(block, TextContent):
        return TextBlock(text=_clean(block.text))
    if isinstance(block, ImageContent):
        return _media("image", block.mime_type, block.data)
    if isinstance(block, AudioContent):
        return _media("audio", block.mime_type, block.data)
    if isinstance(block, ResourceLink):
        description = f": {shown(block.description)}" if block.description else ""
        link = f"{shown(str(block.uri))} ({shown(block.name)}){description}"
        return TextBlock(text=f"[resource {link}]")
    assert isinstance(block, EmbeddedResource)
    return _resource_block(block.resource)


def _resource_block(resource: TextResourceContents | BlobResourceContents) -> _Block:
    if isinstance(resource, TextResourceContents):
        return TextBlock(text=_clean(resource.text))
    media_type = resource.mime_type or "application/octet-stream"
    kind, _, form = media_type.partition("/")
    if kind in ("image", "audio"):
        return _media(kind, media_type, resource.blob)
    if kind == "text" or form.partition(";")[0].endswith(("json", "xml", "yaml")):
        # If the data isn't base64 of text, the note below takes its place.
        with contextlib.suppress(ValueError):
            return TextBlock(text=base64.b64decode(resource.blob, validate=True).decode())
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


def _note(name: str, media_type: str, data: str) -> TextBlock:
    return TextBlock(
        text=f"[{name}: {shown(media_type, 80)}, {len(data) * 3 // 4} bytes, left out]"
    )


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _is_same_value(text: str, structured: dict[str, Any]) -> bool:
    """Return whether a text is the JSON of the structured value or of its only member.

    SDKs and servers send both the text and the value.
    """
    values = (structured, *structured.values()) if len(structured) == 1 else (structured,)
    try:
        return json.loads(text) in values
    except (ValueError, RecursionError):
        return False


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = f"cut: the result has {len(text)} characters, the first {limit} are shown"
    return f"{text[:limit]}\n[… {note} …]"


logger = logging.getLogger("amplifier.modules.tool-mcp")

PROGRESS = "mcp:progress"
_MAX_WAITING_REPORTS = 64
_MAX_PAGES = 20

_Report = tuple[float, float | None, str | None]


class ServerTool(BuiltinTool):
    """A tool that calls a server.

    Args:
        name: The name that the model uses in its calls.
        connection: The connection to the server.
        coordinator: The coordinator of the session in which the tool is mounted.
        max_chars: Maximum number of characters in one result.
    """

    def __init__(
        self, name: str, connection: Connection, coordinator: Coordinator, *, max_chars: int
    ) -> None:
        self._name = name
        self._connection = connection
        self._coordinator = coordinator
        self._max_chars = max_chars

    @property
    def server(self) -> str:
        """The name of its server in the plan."""
        return self._connection.options.name

    @property
    def annotations(self) -> dict[str, Any]:
        """The server's hints about the tool, such as ``readOnlyHint``."""
        return {"readOnlyHint": True}

    def _failed(self, failure: ToolFailure, output: JSON = None) -> ToolResult:
        result = super()._failed(failure, output)
        result.error = {**(result.error or {}), "server": self.server}
        return result


class RemoteTool(ServerTool):
    """A tool of a server under its mounted name.

    Attributes:
        offered: The tool as the server describes it.
    """

    def __init__(
        self,
        name: str,
        offered: Tool,
        connection: Connection,
        coordinator: Coordinator,
        *,
        max_chars: int,
    ) -> None:
        super().__init__(name, connection, coordinator, max_chars=max_chars)
        self.offered = offered
        title = offered.title or (offered.annotations.title if offered.annotations else None)
        description = offered.description or title or f"The tool {offered.name} of {self.server}."
        self._description = shown(description.strip(), 8000)

    @property
    def annotations(self) -> dict[str, Any]:
        """The server's hints about the tool, which may be wrong."""
        hints = self.offered.annotations
        return (
            {} if hints is None else hints.model_dump(by_alias=True, mode="json", exclude_none=True)
        )

    @property
    def require_approval(self) -> bool:
        """True if the server itself declares the tool destructive."""
        return (
            self.offered.annotations is not None
            and self.offered.annotations.destructive_hint is True
        )

    def get_schema(self) -> dict[str, Any]:
        """Return a copy of the JSON Schema of the input."""
        return copy.deepcopy(self.offered.input_schema)

    def _read_input(self, payload: object) -> dict[str, Any]:
        # The server checks the input against its schema.
        if not isinstance(payload, dict):
            raise ToolFailure("InvalidInput", f"expected an object, got {type(payload).__name__}")
        _check_is_json(payload)
        return payload

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        reports, waiting = anyio.create_memory_object_stream[_Report](_MAX_WAITING_REPORTS)
        outcome: list[ToolResult | ToolFailure] = []
        # A task within this call emits the progress, so that handlers run in order and during the
        # turn.
        async with anyio.create_task_group() as group:
            group.start_soon(self._emit_progress, waiting)
            with reports:
                try:
                    outcome.append(
                        await self._connection.use(
                            self._coordinator, partial(self._call, values, reports), self.name
                        )
                    )
                except ToolFailure as failure:
                    outcome.append(failure)
        if isinstance(outcome[0], ToolFailure):
            raise outcome[0]
        return outcome[0]

    async def _call(
        self, arguments: dict[str, Any], reports: MemoryObjectSendStream[_Report], client: Client
    ) -> ToolResult:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            # The call doesn't wait for slow handlers, which miss reports.
            with contextlib.suppress(
                anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError
            ):
                reports.send_nowait((progress, total, message))

        result = await client.call_tool(self.offered.name, arguments, progress_callback=report)
        return as_tool_result(
            result, limit=self._max_chars, failure=f"{self.name} failed without a message"
        )

    async def _emit_progress(self, waiting: MemoryObjectReceiveStream[_Report]) -> None:
        call = current_call()
        latest = float("-inf")
        with waiting:
            async for progress, total, message in waiting:
                # The SDK doesn't keep the order of reports on every backend.
                if progress <= latest:
                    continue
                latest = progress
                details = {
                    "server": self.server,
                    "tool_name": self.name,
                    "tool_call_id": None if call is None else call.call_id,
                    "progress": progress,
                    "total": total,
                    "message": None if message is None else shown(message),
                }
                await self._coordinator.hooks.emit(PROGRESS, details)


def _check_is_json(payload: object) -> None:
    """Check that an input can be sent, since an error in the connection would affect all its calls.

    Raises:
        ToolFailure: The input isn't JSON.
    """
    try:
        json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailure(
            "InvalidInput", f"the input is not JSON: {shown(ascii(str(error)), 200)}"
        ) from None


class _PageTool(ServerTool):
    """A tool for the resources or prompts of a server. A call without a name lists them."""

    @property
    def description(self) -> str:
        """The description for the model."""
        return self._description.format(server=self.server)

    def _read_input(self, payload: object) -> dict[str, Any]:
        values = super()._read_input(payload)
        _check_is_json(payload)
        return values

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        return await self._connection.use(
            self._coordinator, partial(self._request, values), self.name
        )

    @abstractmethod
    async def _request(self, values: dict[str, Any], client: Client) -> ToolResult: ...


class ReadResourceTool(_PageTool):
    """The tool that reads a resource of a server, or lists all resources."""

    _description = (
        "Read a resource of the server {server}. Without uri: list its resources and URI templates."
    )
    _input = tool_input(
        uri=option(
            characters(), None, "The URI of the resource. Leave it out to list the resources."
        )
    )

    async def _request(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "uri" in values:
            resource = await client.read_resource(values["uri"])
            return _joined(
                [_resource_block(content) for content in resource.contents], "\n", self._max_chars
            )
        listing = {
            "resources": [
                _describe(resource, uri=str(resource.uri))
                for page in await _pages(client.list_resources)
                for resource in page.resources
            ],
            "templates": [
                _describe(template, uri_template=template.uri_template)
                for page in await _pages(client.list_resource_templates)
                for template in page.resource_templates
            ],
        }
        return as_json_result(listing, limit=self._max_chars)


class GetPromptTool(_PageTool):
    """The tool that gets a prompt of a server, or lists all prompts."""

    _description = (
        "Get a prompt of the server {server}, filled in. Without name: list its prompts and their "
        "arguments."
    )
    _input = tool_input(
        name=option(
            characters(), None, "The name of the prompt. Leave it out to list the prompts."
        ),
        arguments=option(mapping, None, "The arguments of the prompt, all of them texts."),
    )

    async def _request(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "name" not in values:
            prompts = [
                _describe(
                    prompt,
                    arguments=[
                        {"name": argument.name, "required": bool(argument.required)}
                        for argument in prompt.arguments or []
                    ],
                )
                for page in await _pages(client.list_prompts)
                for prompt in page.prompts
            ]
            return as_json_result({"prompts": prompts}, limit=self._max_chars)
        arguments = {
            name: value if isinstance(value, str) else str(value)
            for name, value in (values.get("arguments") or {}).items()
        }
        return as_prompt_result(
            await client.get_prompt(values["name"], arguments), limit=self._max_chars
        )


async def _pages(list_page: Callable[..., Awaitable[Any]]) -> list[Any]:
    pages: list[Any] = []
    while len(pages) < _MAX_PAGES:
        pages.append(await list_page(cursor=pages[-1].next_cursor if pages else None))
        if pages[-1].next_cursor is None:
            break
    return pages


class _Described(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...


def _describe(item: _Described, **more: JSON) -> dict[str, JSON]:
    details = {"name": shown(item.name), **more}
    if item.description:
        details["description"] = shown(item.description)
    return details


_MAX_NAME_LENGTH = 64
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


# ── tool mounting ─────────────────────────────────────────────────────────────────────────────────


def tool_name(options: ServerOptions, name: str) -> str:
    """Return the name for the model.

    Providers accept at most 64 characters: letters, digits, ``_`` and ``-``.
    """
    full_name = f"{options.tool_prefix}{name}"
    clean = _NOT_IN_A_NAME.sub("_", full_name)
    if len(clean) <= _MAX_NAME_LENGTH:
        return clean or "_"
    return f"{clean[: _MAX_NAME_LENGTH - 9]}_{hashlib.sha256(full_name.encode()).hexdigest()[:8]}"


def is_allowed(options: ServerOptions, name: str) -> bool:
    """Return whether the plan allows a tool of the server."""
    if any(fnmatchcase(name, pattern) for pattern in options.deny):
        return False
    return options.allow is None or any(fnmatchcase(name, pattern) for pattern in options.allow)


class ToolMounting:
    """The tools of one session.

    Args:
        coordinator: The coordinator of the session.
        options: The options of the module.
    """

    def __init__(self, coordinator: Coordinator, options: McpOptions) -> None:
        self._coordinator = coordinator
        self._max_chars = options.max_result_chars
        self._options = {server.name: server for server in options.servers}
        self._mounted: dict[str, ServerTool] = {}

    def names(self, server: str) -> list[str]:
        """Return the names of the mounted tools of a server."""
        return [name for name, tool in self._mounted.items() if tool.server == server]

    async def update(self, connection: Connection) -> None:
        """Mount the tools that the server offers now, and unmount withdrawn ones."""
        server = connection.options.name
        tools: dict[str, ServerTool] = {}
        for tool in self._offered(connection):
            owner = self._other_owner(tool.name, server, tools)
            if owner is not None:
                logger.warning(
                    "server %r: a tool is not mounted, because %s already has a tool with the name "
                    "%r; give one of them another prefix",
                    server,
                    owner,
                    tool.name,
                )
                continue
            tools[tool.name] = tool
        for name in self.names(server):
            if name not in tools:
                if self._is_ours(name):
                    await self._coordinator.unmount("tools", name)
                del self._mounted[name]
        for name, tool in tools.items():
            if not _is_same(self._mounted.get(name), tool):
                await self._coordinator.mount("tools", tool)
                self._mounted[name] = tool

    def _other_owner(self, name: str, server: str, tools: dict[str, ServerTool]) -> str | None:
        """Return the other owner of a name, or None if this server may have it."""
        if name in tools:
            return f"server {server!r}"
        if self._coordinator.get("tools", name) is None:
            return None
        if not self._is_ours(name):
            return f"module {(self._coordinator.owner_of('tools', name) or 'the application')!r}"
        other = self._mounted[name].server
        return None if other == server else f"server {other!r}"

    def _is_ours(self, name: str) -> bool:
        """Return whether this module mounted the tool. Another module may have replaced it."""
        module = getattr(self._coordinator, "module_id", None)
        return name in self._mounted and self._coordinator.owner_of("tools", name) == module

    def _offered(self, connection: Connection) -> Iterator[ServerTool]:
        offer = connection.offer
        if offer is None:
            return
        # The lists of a child may differ from those of its parent, which owns the connection.
        options = self._options[connection.options.name]
        known = {tool.name for tool in offer.tools}
        for offered in offer.tools:
            if is_allowed(options, offered.name):
                name = tool_name(options, offered.name)
                yield RemoteTool(
                    name, offered, connection, self._coordinator, max_chars=self._max_chars
                )
        extras: list[tuple[bool, str, type[ServerTool]]] = [
            (offer.has_resources, "read_resource", ReadResourceTool),
            (offer.has_prompts, "get_prompt", GetPromptTool),
        ]
        for is_useful, name, kind in extras:
            if (
                is_useful
                and name not in known
                and not any(fnmatchcase(name, pattern) for pattern in options.deny)
            ):
                yield kind(
                    tool_name(options, name),
                    connection,
                    self._coordinator,
                    max_chars=self._max_chars,
                )


def _is_same(old: ServerTool | None, new: ServerTool) -> bool:
    """Return whether two tools are the same to the model and to gates, so that one can stay."""
    if isinstance(old, RemoteTool) and isinstance(new, RemoteTool):
        return old.offered == new.offered
    return type(old) is type(new)
