"""What a server offers: its tools with their checked schemas, and whether it has resources and prompts."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import anyio.to_thread
import attrs
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, Tool
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from amplifier._json import SchemaRefused, build_validator

from ..._shared.failure import ToolFailure, shown
from ._options import ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")


# ── tool list filter ──────────────────────────────────────────────────────────────────────────────
# Takes invalid tools out of a server's list before the SDK sees it, because the SDK refuses a list with one invalid
# tool as a whole.


@asynccontextmanager
async def without_invalid_tools(
    transport: AbstractAsyncContextManager[Any], options: ServerOptions, version: Callable[[], str]
) -> AsyncIterator[Any]:
    """The streams of a transport, whose lists of tools have valid members only; what is left out is logged by its name.

    Args:
        transport: Of the server.
        options: The server's.
        version: The version of the protocol that both use; raises RuntimeError before they have agreed on one.
    """
    async with transport as (received, to_send):
        yield _Filtered(received, options, version), to_send


_REST_OF_A_LIST = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What newer versions of the protocol require beside the tools; older ones ignore it."""


class _Filtered:
    """A stream of messages; other attributes, which the SDK looks for, are those of the stream below."""

    def __init__(self, received: Any, options: ServerOptions, version: Callable[[], str]) -> None:
        self._received = received
        self._options = options
        self._version = version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._received, name)

    async def __aenter__(self) -> Self:
        await self._received.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._received.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await self._received.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        return self._checked(await self._received.receive())

    def _checked(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and isinstance(tools := message.result.get("tools"), list):
            message.result["tools"] = [tool for tool in tools if self._is_valid(tool)]
            for tool in message.result[
                "tools"
            ]:  # the SDK would check each result by it in the event loop, however long it takes
                tool.pop("outputSchema", None)
        return item

    def _is_valid(self, tool: Any) -> bool:
        try:
            schema = Tool.model_validate(tool, by_name=False).input_schema
        except ValidationError as error:
            _log_unused(self._options, tool, first_problem(error))
            return False
        if schema.get("type") != "object":
            _log_unused(self._options, tool, f"its input schema has type {schema.get('type')!r}, expected 'object'")
            return False
        try:  # what the SDK checks before it reads the list
            validate_server_result("tools/list", self._version(), {**_REST_OF_A_LIST, "tools": [tool]})
        except ValidationError as error:
            _log_unused(self._options, tool, first_problem(error).replace("tools.0.", ""))
            return False
        except RuntimeError:  # no version yet, so this is no list of tools
            return True
        return True


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with a message of a server, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"invalid value at {'.'.join(map(str, first['loc'])) or '$'}: {first['msg']}"


def _log_unused(options: ServerOptions, tool: Any, problem: str) -> None:
    name = tool["name"] if isinstance(tool, dict) and "name" in tool else tool
    logger.warning("server %r: tool %s is not used: %s", options.name, shown(ascii(name), 80), shown(problem, 300))


_MOST_PAGES = 100
_MOST_TOOLS = 1000


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
    tools: tuple[Tool, ...]
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
    given_up = threading.Event()
    try:
        usable = await anyio.to_thread.run_sync(_usable, tools, options, given_up, abandon_on_cancel=True)
    finally:
        given_up.set()
    return Offer(
        server="unnamed" if info is None else shown(f"{info.name} {info.version}", 200),
        protocol=client.protocol_version,
        instructions=shown(client.instructions or "", 4000),
        tools=tuple(usable),
        has_resources=capabilities.resources is not None,
        has_prompts=capabilities.prompts is not None,
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


def _usable(tools: list[Tool], options: ServerOptions, given_up: threading.Event) -> list[Tool]:
    usable: dict[str, Tool] = {}
    for tool in tools:
        if given_up.is_set():
            break
        problem = "it is listed twice" if tool.name in usable else _problem(tool)
        if problem is not None:
            _log_unused(options, {"name": tool.name}, problem)
            continue
        usable[tool.name] = tool
    return list(usable.values())


def _problem(tool: Tool) -> str | None:
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it can only be called as a task of the protocol, which this module does not support"
    try:
        build_validator(tool.input_schema)
    except SchemaRefused as error:
        return f"its input schema is refused: {error}"
    return None
