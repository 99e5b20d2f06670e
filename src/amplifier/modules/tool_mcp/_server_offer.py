"""What a server offers: its tools with their checked schemas, and whether it has resources and prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import attrs
from jsonschema import SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from mcp import Client
from mcp_types import Tool

from .._tool_base import ToolFailure, shown
from ._options import ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

_MOST_PAGES = 100
_MOST_TOOLS = 1000


@attrs.frozen(kw_only=True)
class OfferedTool:
    """A tool as its server describes it.

    Attributes:
        name: The server's name for it.
        schema: The JSON Schema of its input, an object.
        annotations: The server's hints, such as ``readOnlyHint``; a claim of the server, not a fact.
    """

    name: str
    description: str
    schema: Mapping[str, Any] = attrs.field(repr=False)
    annotations: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Offer:
    """Everything that a server offers.

    Attributes:
        server: Its name and version, as it states them.
        protocol: The version of the protocol that both use.
        instructions: How to use it, for the model.
    """

    server: str
    protocol: str
    instructions: str
    tools: tuple[OfferedTool, ...]
    has_resources: bool
    has_prompts: bool


async def read_offer(client: Client, options: ServerOptions) -> Offer:
    """Ask a server what it offers; a tool with an invalid schema is left out and logged.

    Raises:
        ToolFailure: Its list of tools has no end.
    """
    capabilities = client.server_capabilities
    info = client.server_info
    tools = [] if capabilities.tools is None else await _list_tools(client, options)
    return Offer(
        server="unnamed" if info is None else shown(f"{info.name} {info.version}", 200),
        protocol=client.protocol_version,
        instructions=shown(client.instructions or "", 4000),
        tools=tuple(await anyio.to_thread.run_sync(_usable, tools, options)),
        has_resources=capabilities.resources is not None and options.offer_resources,
        has_prompts=capabilities.prompts is not None and options.offer_prompts,
    )


async def _list_tools(client: Client, options: ServerOptions) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
        if len(found) > _MOST_TOOLS:
            break
    raise ToolFailure("ServerFailed", f"server {options.name!r}: its list of tools has no end; got {len(found)} so far")


def _usable(tools: list[Tool], options: ServerOptions) -> list[OfferedTool]:
    usable: dict[str, OfferedTool] = {}
    for tool in tools:
        problem = "it is listed twice" if tool.name in usable else _schema_problem(tool.input_schema)
        if problem is not None:
            logger.warning(
                "server %r: tool %s is not used: %s", options.name, shown(ascii(tool.name), 80), shown(problem, 300)
            )
            continue
        title = tool.title or (tool.annotations.title if tool.annotations else None)
        usable[tool.name] = OfferedTool(
            name=tool.name,
            description=shown((tool.description or title or f"The tool {tool.name} of {options.name}.").strip(), 8000),
            schema=tool.input_schema,
            annotations={}
            if tool.annotations is None
            else tool.annotations.model_dump(by_alias=True, mode="json", exclude_none=True),
        )
    return list(usable.values())


def _schema_problem(schema: dict[str, Any]) -> str | None:
    if schema.get("type") != "object":
        return f"its input schema has type {schema.get('type')!r}, expected 'object'"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"its input schema is not valid JSON Schema: {error.json_path}: {error.message}"
    except Exception as error:  # noqa: BLE001 - the schema is the server's, and may break a validator in any way
        return f"its input schema cannot be checked: {type(error).__name__}: {error}"
    return None
