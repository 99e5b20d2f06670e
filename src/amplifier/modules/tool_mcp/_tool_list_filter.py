"""Takes invalid tools out of a server's list before the SDK sees it, because the SDK refuses a list with one invalid tool as a whole."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from .._tool_base import shown
from ._options import ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")


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
        if isinstance(message, JSONRPCResponse) and isinstance(message.result.get("tools"), list):
            problems = self._invalid_tools(message.result)
            tools = message.result["tools"]
            for index, problem in problems.items():
                logger.warning(
                    "server %r: tool %s is not used: %s", self._options.name, _name(tools[index]), shown(problem, 300)
                )
            message.result["tools"] = [tool for index, tool in enumerate(tools) if index not in problems]
        return item

    def _invalid_tools(self, result: dict[str, Any]) -> dict[int, str]:
        """The first problem of each invalid tool, by its place in the list."""
        problems: dict[int, str] = {}
        try:
            validate_server_result("tools/list", self._version(), result)
        except ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                place = list(each["loc"])
                if "tools" in place[:-1]:
                    index, *rest = place[place.index("tools") + 1 :]
                    if isinstance(index, int):
                        where = ".".join(map(str, rest)) or "$"
                        problems.setdefault(index, f"invalid value at {where}: {each['msg']}")
        except (KeyError, RuntimeError, ValueError):  # no version yet, or one without a check
            return {}
        return problems


def _name(tool: Any) -> str:
    return shown(ascii(tool["name"] if isinstance(tool, dict) and "name" in tool else tool), 80)
