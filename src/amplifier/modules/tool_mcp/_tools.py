"""The tools that sessions mount: one for each tool of a server, one that reads resources, one that gets prompts."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp_types import ListResourcesResult, ListResourceTemplatesResult

from amplifier.contracts import Coordinator, current_call
from amplifier.models import ToolResult

from .._tool_base import ToolFailure, check_input, shown
from ._connection import Connection
from ._content import as_prompt_result, as_resource_result, as_tool_result
from ._server_offer import OfferedTool

logger = logging.getLogger("amplifier.modules.tool-mcp")

PROGRESS = "mcp:progress"
_WAITING_REPORTS = 64
_MOST_PAGES = 20

_Report = tuple[float, float | None, str | None]


class ServerTool(ABC):
    """A tool whose work a server does.

    Args:
        name: The name the model calls it by.
        connection: To the server.
        coordinator: Of the session it is mounted in.
        max_chars: Of one result.
    """

    def __init__(self, name: str, connection: Connection, coordinator: Coordinator, *, max_chars: int) -> None:
        self.name = name
        self._connection = connection
        self._coordinator = coordinator
        self._max_chars = max_chars

    @property
    @abstractmethod
    def description(self) -> str:
        """What it does, for the model."""

    @property
    @abstractmethod
    def _schema(self) -> Mapping[str, Any]: ...

    @property
    def server(self) -> str:
        """The name of its server in the plan."""
        return self._connection.options.name

    @property
    def annotations(self) -> dict[str, Any]:
        """The server's hints about the tool, such as ``readOnlyHint``."""
        return {"readOnlyHint": True}

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, a copy."""
        return copy.deepcopy(dict(self._schema))

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Have the server do the work; only cancellation is raised."""
        try:
            return await self._run(input)
        except ToolFailure as failure:
            message = shown(str(failure), 4000)
            logger.info("tool %s: %s (%s)", self.name, message, failure.kind)
            return ToolResult(success=False, error={"message": message, "type": failure.kind, "server": self.server})

    @abstractmethod
    async def _run(self, given: dict[str, Any]) -> ToolResult: ...


class RemoteTool(ServerTool):
    """A tool of a server, under another name."""

    def __init__(
        self, name: str, offered: OfferedTool, connection: Connection, coordinator: Coordinator, *, max_chars: int
    ) -> None:
        super().__init__(name, connection, coordinator, max_chars=max_chars)
        self.offered = offered

    @property
    def description(self) -> str:
        """What it does, in the server's words."""
        return self.offered.description

    @property
    def _schema(self) -> Mapping[str, Any]:
        return self.offered.schema

    @property
    def annotations(self) -> dict[str, Any]:
        """The server's hints about the tool; a claim of the server, not a fact."""
        return dict(self.offered.annotations)

    @property
    def require_approval(self) -> bool:
        """Whether the server itself calls the tool destructive."""
        return self.offered.annotations.get("destructiveHint") is True

    async def _run(self, given: dict[str, Any]) -> ToolResult:
        if not isinstance(given, dict):
            raise ToolFailure("InvalidInput", f"expected an object, got {type(given).__name__}")
        _check_is_json(given)
        reports, waiting = anyio.create_memory_object_stream[_Report](_WAITING_REPORTS)
        outcome: list[ToolResult | ToolFailure] = []
        # A task of this call emits progress, so that handlers run in order and inside the turn.
        async with anyio.create_task_group() as group:
            group.start_soon(self._emit_progress, waiting)
            with reports:
                try:
                    outcome.append(
                        await self._connection.use(self._coordinator, partial(self._call, given, reports), self.name)
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
            with contextlib.suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
                reports.send_nowait((progress, total, message))

        result = await client.call_tool(self.offered.name, given, progress_callback=note)
        return as_tool_result(result, longest=self._max_chars, failure=f"{self.name} failed without a message")

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
                details = {"progress": progress, "total": total, "message": None if message is None else shown(message)}
                await self._coordinator.hooks.emit(PROGRESS, {**about, **details})


def _check_is_json(given: dict[str, Any]) -> None:
    """Refuse what cannot be sent, before it reaches the connection that all calls share.

    Raises:
        ToolFailure: It is not JSON.
    """
    try:
        json.dumps(given, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailure("InvalidInput", f"the input is not JSON: {shown(ascii(str(error)), 200)}") from None


class _PageTool(ServerTool):
    """A built-in tool about a server, which lists what there is when it is called without a name."""

    async def _run(self, given: dict[str, Any]) -> ToolResult:
        values, problems = check_input(self._schema, given)
        if problems:
            raise ToolFailure("InvalidInput", "; ".join(problems))
        _check_is_json(given)
        if "arguments" in values:
            values["arguments"] = given["arguments"]  # of any names, which the check does not return
        return await self._connection.use(self._coordinator, partial(self._ask, values), self.name)

    @abstractmethod
    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult: ...


class ReadResourceTool(_PageTool):
    """Reads a resource of a server, or lists them."""

    @property
    def _schema(self) -> Mapping[str, Any]:
        return {
            "type": "object",
            "properties": {
                "uri": {"type": "string", "description": "The URI of the resource; leave it out to list what there is."}
            },
            "additionalProperties": False,
        }

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return f"Read a resource of the server {self.server}. Without uri: list its resources and URI templates."

    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "uri" in values:
            return as_resource_result(await client.read_resource(values["uri"]), longest=self._max_chars)
        resources: list[Any] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page: ListResourcesResult = await client.list_resources(cursor=cursor)
            resources += [_about(resource, uri=str(resource.uri)) for resource in page.resources]
            cursor = page.next_cursor
            if cursor is None:
                break
        templates: ListResourceTemplatesResult = await client.list_resource_templates()
        listed = [_about(template, uri_template=template.uri_template) for template in templates.resource_templates]
        return ToolResult(output={"resources": resources, "templates": listed})


class GetPromptTool(_PageTool):
    """Gets a prompt of a server, or lists them."""

    @property
    def _schema(self) -> Mapping[str, Any]:
        return {
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "description": "The name of the prompt; leave it out to list what there is.",
                },
                "arguments": {"type": "object", "description": "The arguments of the prompt, all of them texts."},
            },
            "additionalProperties": False,
        }

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return (
            f"Get a prompt of the server {self.server}, filled in. Without name: list its prompts and their arguments."
        )

    async def _ask(self, values: dict[str, Any], client: Client) -> ToolResult:
        if "name" not in values:
            page = await client.list_prompts()
            return ToolResult(
                output={
                    "prompts": [
                        _about(
                            prompt,
                            arguments=[
                                {"name": each.name, "required": bool(each.required)} for each in prompt.arguments or []
                            ],
                        )
                        for prompt in page.prompts
                    ]
                }
            )
        given = values.get("arguments") or {}
        arguments = {name: value if isinstance(value, str) else str(value) for name, value in given.items()}
        return as_prompt_result(await client.get_prompt(values["name"], arguments), longest=self._max_chars)


def _about(item: Any, **more: Any) -> dict[str, Any]:
    about = {"name": shown(item.name), **more}
    if item.description:
        about["description"] = shown(item.description)
    return about
