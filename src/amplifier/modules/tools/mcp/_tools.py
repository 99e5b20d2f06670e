"""The tools that sessions mount: one for each tool of a server, one that reads resources, one that gets prompts."""

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
from typing import Any, TypeAlias

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

from amplifier.contracts import Coordinator, current_call
from amplifier.errors import ModelError
from amplifier.models import ImageBlock, TextBlock, ToolResult, UnknownBlock, from_dict

from ..._shared.configuration import mapping
from ..._shared.failure import ToolFailure, shown
from .._base import BuiltinTool, characters, option, tool_input
from ._connection import Connection
from ._options import McpOptions, ServerOptions

_MOST_MEDIA = 100
"""In one result; models take hardly more."""

_Block: TypeAlias = TextBlock | ImageBlock | UnknownBlock


# ── content ───────────────────────────────────────────────────────────────────────────────────────
# Results of the protocol as results of tools: text, images, audio, structured values, and notes for what a model
# cannot read.


def as_tool_result(result: CallToolResult, *, longest: int, failure: str) -> ToolResult:
    """The result of a call.

    Args:
        result: The server's.
        longest: Characters of text for the model; the rest is cut with a note.
        failure: The message of a failed call without text.
    """
    blocks = [_block(block) for block in result.content]
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if result.is_error:
        message = _cut(text or failure, longest)
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
        return _joined([*blocks, *values], "\n", longest)
    if structured is None or list(structured.values()) == [text]:  # a plain text, wrapped
        return ToolResult(output=_cut(text, longest))
    output = (
        structured
        if not text or _says_the_same(text, structured)
        else {"text": text, "structured": structured}
    )
    return as_json_result(output, longest=longest)


def as_prompt_result(result: GetPromptResult, *, longest: int) -> ToolResult:
    """The messages of a prompt."""
    blocks: list[_Block] = []
    for message in result.messages:
        block = _block(message.content)
        blocks.append(
            TextBlock(text=f"{message.role}: {block.text}")
            if isinstance(block, TextBlock)
            else block
        )
    return _joined(blocks, "\n\n", longest)


def as_json_result(value: dict[str, Any], *, longest: int) -> ToolResult:
    """A value; as text where it is too long."""
    text = json.dumps(value, ensure_ascii=False)
    return ToolResult(output=value if len(text) <= longest else _cut(text, longest))


def _joined(blocks: list[_Block], separator: str, longest: int) -> ToolResult:
    """Text; with images and audio also the blocks in their order: hooks and logs see a note for each image and for audio."""
    kept: list[_Block] = []
    left, media = longest, 0
    for block in blocks:
        if isinstance(block, TextBlock):
            kept.append(TextBlock(text=_cut(block.text, left)))
            left = max(0, left - len(block.text))
        else:
            media += 1
            if media <= _MOST_MEDIA:
                kept.append(block)
    if media > _MOST_MEDIA:
        kept.append(
            TextBlock(
                text=f"[… cut: the result has {media} images and sounds, {_MOST_MEDIA} are shown …]"
            )
        )
    notes = [
        block.text if isinstance(block, TextBlock) else f"[{_media_type(block)}]"
        for block in blocks
    ]
    return ToolResult(output=_cut(separator.join(notes), longest), content=kept if media else None)


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
    kind, _, form = media_type.partition("/")
    if kind in ("image", "audio"):
        return _media(kind, media_type, resource.blob)
    if kind == "text" or form.partition(";")[0].endswith(("json", "xml", "yaml")):
        with contextlib.suppress(ValueError):  # it is neither base64 nor text: left out with a note
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


def _note(what: str, media_type: str, data: str) -> TextBlock:
    return TextBlock(
        text=f"[{what}: {shown(media_type, 80)}, {len(data) * 3 // 4} bytes, left out]"
    )


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _says_the_same(text: str, structured: dict[str, Any]) -> bool:
    """Whether the structured value, or its only member, is the text again: SDKs and servers send both."""
    same = (structured, *structured.values()) if len(structured) == 1 else (structured,)
    try:
        return json.loads(text) in same
    except (ValueError, RecursionError):
        return False


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[… cut: the result has {len(text)} characters, the first {longest} are shown …]"


logger = logging.getLogger("amplifier.modules.tool-mcp")

PROGRESS = "mcp:progress"
_WAITING_REPORTS = 64
_MOST_PAGES = 20

_Report = tuple[float, float | None, str | None]


class ServerTool(BuiltinTool):
    """A tool whose work a server does.

    Args:
        name: The name the model calls it by.
        connection: To the server.
        coordinator: Of the session it is mounted in.
        max_chars: Of one result.
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

    def _failed(self, failure: ToolFailure, output: Any = None) -> ToolResult:
        result = super()._failed(failure, output)
        result.error = {**(result.error or {}), "server": self.server}
        return result


class RemoteTool(ServerTool):
    """A tool of a server, under another name."""

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
        words = offered.description or title or f"The tool {offered.name} of {self.server}."
        self._description = shown(words.strip(), 8000)

    @property
    def annotations(self) -> dict[str, Any]:
        """The server's hints about the tool; a claim of the server, not a fact."""
        given = self.offered.annotations
        return (
            {} if given is None else given.model_dump(by_alias=True, mode="json", exclude_none=True)
        )

    @property
    def require_approval(self) -> bool:
        """Whether the server itself calls the tool destructive."""
        return (
            self.offered.annotations is not None
            and self.offered.annotations.destructive_hint is True
        )

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, a copy."""
        return copy.deepcopy(self.offered.input_schema)

    def _read_input(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise ToolFailure("InvalidInput", f"expected an object, got {type(given).__name__}")
        _check_is_json(given)
        return given  # the server checks it by its schema

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        reports, waiting = anyio.create_memory_object_stream[_Report](_WAITING_REPORTS)
        outcome: list[ToolResult | ToolFailure] = []
        # A task of this call emits progress, so that handlers run in order and inside the turn.
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
        self, given: dict[str, Any], reports: MemoryObjectSendStream[_Report], client: Client
    ) -> ToolResult:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            # Slow handlers miss reports; the call does not wait for them.
            with contextlib.suppress(
                anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError
            ):
                reports.send_nowait((progress, total, message))

        result = await client.call_tool(self.offered.name, given, progress_callback=note)
        return as_tool_result(
            result, longest=self._max_chars, failure=f"{self.name} failed without a message"
        )

    async def _emit_progress(self, waiting: MemoryObjectReceiveStream[_Report]) -> None:
        call = current_call()
        latest = float("-inf")
        with waiting:
            async for progress, total, message in waiting:
                if progress <= latest:  # the SDK does not keep their order on every backend
                    continue
                latest = progress
                about = {
                    "server": self.server,
                    "tool_name": self.name,
                    "tool_call_id": None if call is None else call.call_id,
                }
                details = {
                    "progress": progress,
                    "total": total,
                    "message": None if message is None else shown(message),
                }
                await self._coordinator.hooks.emit(PROGRESS, {**about, **details})


def _check_is_json(given: dict[str, Any]) -> None:
    """Refuse what cannot be sent, before it reaches the connection that all calls share.

    Raises:
        ToolFailure: It is not JSON.
    """
    try:
        json.dumps(given, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailure(
            "InvalidInput", f"the input is not JSON: {shown(ascii(str(error)), 200)}"
        ) from None


class _PageTool(ServerTool):
    """A built-in tool about a server, which lists what there is when it is called without a name."""

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return self._description.format(server=self.server)

    def _read_input(self, given: Any) -> dict[str, Any]:
        values = super()._read_input(given)
        _check_is_json(given)
        return values

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        return await self._connection.use(self._coordinator, partial(self._ask, values), self.name)

    @abstractmethod
    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult: ...


class ReadResourceTool(_PageTool):
    """Reads a resource of a server, or lists them."""

    _description = (
        "Read a resource of the server {server}. Without uri: list its resources and URI templates."
    )
    _input = tool_input(
        uri=option(
            characters(), None, "The URI of the resource; leave it out to list what there is."
        )
    )

    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "uri" in values:
            read = await client.read_resource(values["uri"])
            return _joined(
                [_resource_block(content) for content in read.contents], "\n", self._max_chars
            )
        listed = {
            "resources": [
                _about(resource, uri=str(resource.uri))
                for page in await _pages(client.list_resources)
                for resource in page.resources
            ],
            "templates": [
                _about(template, uri_template=template.uri_template)
                for page in await _pages(client.list_resource_templates)
                for template in page.resource_templates
            ],
        }
        return as_json_result(listed, longest=self._max_chars)


class GetPromptTool(_PageTool):
    """Gets a prompt of a server, or lists them."""

    _description = "Get a prompt of the server {server}, filled in. Without name: list its prompts and their arguments."
    _input = tool_input(
        name=option(
            characters(), None, "The name of the prompt; leave it out to list what there is."
        ),
        arguments=option(mapping, None, "The arguments of the prompt, all of them texts."),
    )

    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "name" not in values:
            prompts = [
                _about(
                    prompt,
                    arguments=[
                        {"name": each.name, "required": bool(each.required)}
                        for each in prompt.arguments or []
                    ],
                )
                for page in await _pages(client.list_prompts)
                for prompt in page.prompts
            ]
            return as_json_result({"prompts": prompts}, longest=self._max_chars)
        given = values.get("arguments") or {}
        arguments = {
            name: value if isinstance(value, str) else str(value) for name, value in given.items()
        }
        return as_prompt_result(
            await client.get_prompt(values["name"], arguments), longest=self._max_chars
        )


async def _pages(list_page: Callable[..., Awaitable[Any]]) -> list[Any]:
    pages: list[Any] = []
    while len(pages) < _MOST_PAGES:
        pages.append(await list_page(cursor=pages[-1].next_cursor if pages else None))
        if pages[-1].next_cursor is None:
            break
    return pages


def _about(item: Any, **more: Any) -> dict[str, Any]:
    about = {"name": shown(item.name), **more}
    if item.description:
        about["description"] = shown(item.description)
    return about


_LONGEST_NAME = 64
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


# ── tool mounting ─────────────────────────────────────────────────────────────────────────────────
# Which tools of the servers a session mounts, and under which names.


def tool_name(options: ServerOptions, name: str) -> str:
    """The name for the model: letters, digits, ``_`` and ``-``, at most 64 of them, as model providers demand."""
    wanted = f"{options.tool_prefix}{name}"
    clean = _NOT_IN_A_NAME.sub("_", wanted)
    if len(clean) <= _LONGEST_NAME:
        return clean or "_"
    return f"{clean[: _LONGEST_NAME - 9]}_{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def is_wanted(options: ServerOptions, name: str) -> bool:
    """Whether the plan lets a tool of the server be mounted."""
    if any(fnmatchcase(name, pattern) for pattern in options.deny):
        return False
    return options.allow is None or any(fnmatchcase(name, pattern) for pattern in options.allow)


class ToolMounting:
    """The tools of one session.

    Args:
        coordinator: The session's.
        options: The module's.
    """

    def __init__(self, coordinator: Coordinator, options: McpOptions) -> None:
        self._coordinator = coordinator
        self._max_chars = options.max_result_chars
        self._options = {server.name: server for server in options.servers}
        self._mounted: dict[str, ServerTool] = {}

    def names(self, server: str) -> list[str]:
        """The names of the mounted tools of a server."""
        return [name for name, tool in self._mounted.items() if tool.server == server]

    async def update(self, connection: Connection) -> None:
        """Mount what the server offers now, and unmount what it does not offer any more."""
        server = connection.options.name
        wanted: dict[str, ServerTool] = {}
        for tool in self._offered(connection):
            holder = self._holder(tool.name, server, wanted)
            if holder is not None:
                logger.warning(
                    "server %r: a tool is not mounted, because %s has the name %r already; give one of them another prefix",
                    server,
                    holder,
                    tool.name,
                )
                continue
            wanted[tool.name] = tool
        for name in self.names(server):
            if name not in wanted:
                if self._is_ours(name):
                    await self._coordinator.unmount("tools", name)
                del self._mounted[name]
        for name, tool in wanted.items():
            if not _is_same(self._mounted.get(name), tool):
                await self._coordinator.mount("tools", tool)
                self._mounted[name] = tool

    def _holder(self, name: str, server: str, wanted: dict[str, ServerTool]) -> str | None:
        """Who else has a name; None if this server may have it."""
        if name in wanted:
            return f"server {server!r}"
        if self._coordinator.get("tools", name) is None:
            return None
        if not self._is_ours(name):
            return f"module {(self._coordinator.owner_of('tools', name) or 'the application')!r}"
        other = self._mounted[name].server
        return None if other == server else f"server {other!r}"

    def _is_ours(self, name: str) -> bool:
        """Whether this module mounted what has the name now: another one may have replaced it since."""
        mine = getattr(self._coordinator, "module_id", None)
        return name in self._mounted and self._coordinator.owner_of("tools", name) == mine

    def _offered(self, connection: Connection) -> Iterator[ServerTool]:
        offer = connection.offer
        if offer is None:
            return
        options = self._options[
            connection.options.name
        ]  # a child's lists may differ from its parent's
        known = {tool.name for tool in offer.tools}
        for offered in offer.tools:
            if is_wanted(options, offered.name):
                name = tool_name(options, offered.name)
                yield RemoteTool(
                    name, offered, connection, self._coordinator, max_chars=self._max_chars
                )
        extras: list[tuple[bool, str, type[ServerTool]]] = [
            (offer.has_resources, "read_resource", ReadResourceTool),
            (offer.has_prompts, "get_prompt", GetPromptTool),
        ]
        for is_there, name, kind in extras:
            if (
                is_there
                and name not in known
                and not any(fnmatchcase(name, each) for each in options.deny)
            ):
                yield kind(
                    tool_name(options, name),
                    connection,
                    self._coordinator,
                    max_chars=self._max_chars,
                )


def _is_same(old: ServerTool | None, new: ServerTool) -> bool:
    """Whether a tool needs no new mount: what the model and the gates see of it has not changed."""
    if isinstance(old, RemoteTool) and isinstance(new, RemoteTool):
        return old.offered == new.offered
    return type(old) is type(new)
