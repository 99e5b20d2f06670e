"""A tool for tests: returns configured results and records its calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

import anyio

from amplifier._json import copy_json
from amplifier.models import ToolResult

_UNSET: Any = object()
_ANY_OBJECT = {"type": "object", "properties": {}}


@final
class MockTool:
    """Returns the same result for every call, or what ``respond`` makes of the input.

    Everything but the name is given by keyword.

    Args:
        name: The name the model calls it by.
        description: The description that the model gets.
        return_value: The output of a successful result; a ToolResult is returned as it is.
        output: The same, by its older name.
        respond: ``respond(input)``, sync or async, gives the output instead.
        schema: The JSON Schema of the input; any object if absent.
        error: Fail with this: a message, or the error of the result.
        raises: Raise this, as a tool that breaks its contract does.
        delay: Seconds to wait before answering.

    Attributes:
        calls: A copy of every input, in the order of the calls.

    Raises:
        ValueError: More than one of the answers was given.
    """

    def __init__(
        self,
        name: str = "mock_tool",
        *,
        description: str | None = None,
        return_value: Any = _UNSET,
        output: Any = _UNSET,
        respond: Callable[[dict[str, Any]], Any | Awaitable[Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        error: str | Mapping[str, Any] | None = None,
        raises: BaseException | type[BaseException] | None = None,
        delay: float = 0.0,
    ) -> None:
        given = {
            "return_value": return_value is not _UNSET,
            "output": output is not _UNSET,
            "respond": respond is not None,
            "error": error is not None,
            "raises": raises is not None,
        }
        if sum(given.values()) > 1:
            named = ", ".join(argument for argument, is_given in given.items() if is_given)
            raise ValueError(f"MockTool {name!r} got {named}; expected one answer: give only one of them")
        self.name = name
        self.description: str = f"Mock tool {name}." if description is None else description
        self.calls: list[dict[str, Any]] = []
        self._output = "Success" if not any(given.values()) else output if given["output"] else return_value
        self._respond = respond
        self._schema = copy_json(dict(_ANY_OBJECT if schema is None else schema))
        self._error = {"message": error} if isinstance(error, str) else error
        self._raises = raises
        self._delay = delay

    def __repr__(self) -> str:
        return f"<MockTool {self.name!r} called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """How often `execute` was called, calls that were cancelled meanwhile included."""
        return len(self.calls)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """The input of the newest call; None before the first."""
        return self.calls[-1] if self.calls else None

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        schema: dict[str, Any] = copy_json(self._schema)
        return schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Record the call, wait if configured, and return the result."""
        self.calls.append(copy_json(input))
        if self._delay > 0:
            await anyio.sleep(self._delay)
        if self._raises is not None:
            raise self._raises
        if self._error is not None:
            return ToolResult(success=False, error=dict(self._error))
        output = self._output
        if self._respond is not None:
            output = self._respond(input)
            if inspect.isawaitable(output):
                output = await output
        return output if isinstance(output, ToolResult) else ToolResult(success=True, output=output)
