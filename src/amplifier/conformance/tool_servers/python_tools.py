"""Serves Python functions and tools of other libraries over standard streams, unchanged.

The kit runs this file as a program: ``python -P python_tools.py PLACES PACKAGE:OBJECT``. The
program imports the object natively on asyncio, and only what the object itself needs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

Arguments = dict[str, Any]
Call = Callable[[Arguments], Awaitable[object]]


class Failure(Exception):
    """A tool reported a failure in its own way. It becomes a result."""


class Adapted:
    """One tool as a server lists it.

    Args:
        name: The name of the tool.
        description: Its description for the model.
        schema: The schema of its input.
        call: Runs it, and raises if it fails.
        hints: Annotations of the protocol.
    """

    def __init__(
        self,
        name: str,
        description: str,
        schema: dict[str, Any],
        call: Call,
        hints: dict[str, Any] | None = None,
    ) -> None:
        self.listed: dict[str, Any] = {
            "name": name,
            "description": description or "",
            "inputSchema": schema,
            **({"annotations": hints} if hints else {}),
        }
        self.name = name
        self.call = call


# ── adapters ──


async def adapt(thing: Any) -> list[Adapted]:
    """Return the tools of an object.

    Raises:
        TypeError: It isn't a tool, a list of tools or a function.
    """
    if isinstance(thing, list | tuple | set | frozenset):
        return [tool for member in thing for tool in await adapt(member)]
    roots = {cls.__module__.partition(".")[0] for cls in type(thing).__mro__}
    if "pydantic_ai" in roots:
        return await _pydantic_ai(thing)
    if "agents" in roots and hasattr(thing, "on_invoke_tool"):
        return [_openai_agents(thing)]
    if "langchain_core" in roots and hasattr(thing, "ainvoke"):
        return [_langchain(thing)]
    if callable(getattr(thing, "execute", None)) and hasattr(thing, "name"):
        return [_own(thing)]
    if callable(thing) and not inspect.isclass(thing):
        from amplifier.functions import FunctionTool  # noqa: PLC0415  # other objects do without

        return [_own(FunctionTool(thing))]
    raise TypeError(
        f"{type(thing).__name__} is not a function, a tool or toolset of pydantic-ai, a function "
        "tool of openai-agents, a tool of LangChain, or a list of these"
    )


def _own(tool: Any) -> Adapted:
    from amplifier.contracts import tool_schema  # noqa: PLC0415  # other objects do without

    async def call(arguments: Arguments) -> object:
        result = await tool.execute(arguments)
        if not result.success:
            raise Failure(
                (result.error or {}).get("message") or json.dumps(result.error, default=repr)
            )
        return result.output

    hints = getattr(tool, "annotations", None)
    return Adapted(
        tool.name, tool.description, tool_schema(tool) or {"type": "object"}, call, hints
    )


async def _pydantic_ai(thing: Any) -> list[Adapted]:
    # The object is one of the library's, so the library is installed.
    library = importlib.import_module("pydantic_ai")
    model = importlib.import_module("pydantic_ai.models.test").TestModel()
    toolsets = importlib.import_module("pydantic_ai.toolsets")
    toolset = (
        thing if isinstance(thing, toolsets.AbstractToolset) else toolsets.FunctionToolset([thing])
    )
    context = library.RunContext(deps=None, model=model, usage=library.RunUsage())

    async def call(name: str, tool: Any, arguments: Arguments) -> object:
        # The library's agent does the same: it validates the input, and then the toolset calls the
        # tool.
        read = tool.args_validator.validate_python(arguments)
        return await toolset.call_tool(name, read, context, tool)

    return [
        Adapted(
            name,
            tool.tool_def.description or "",
            tool.tool_def.parameters_json_schema,
            functools.partial(call, name, tool),
        )
        for name, tool in (await toolset.get_tools(context)).items()
    ]


_AGENTS_FAILURE = "An error occurred while running the tool"


def _openai_agents(tool: Any) -> Adapted:
    # The object is one of the library's, so the library is installed.
    make_context = importlib.import_module("agents.tool_context").ToolContext

    async def call(arguments: Arguments) -> object:
        text = json.dumps(arguments)
        context = make_context(
            context=None, tool_name=tool.name, tool_call_id="call_1", tool_arguments=text
        )
        answer = await tool.on_invoke_tool(context, text)
        # The library reports a failure to the model like this.
        if isinstance(answer, str) and answer.startswith(_AGENTS_FAILURE):
            raise Failure(answer)
        return answer

    return Adapted(tool.name, tool.description, tool.params_json_schema, call)


def _langchain(tool: Any) -> Adapted:
    async def call(arguments: Arguments) -> object:
        message = await tool.ainvoke(
            {"type": "tool_call", "id": "call_1", "name": tool.name, "args": arguments}
        )
        if getattr(message, "status", "success") == "error":
            raise Failure(str(message.content))
        return getattr(message, "content", message)

    declared = tool.tool_call_schema
    schema = declared if isinstance(declared, dict) else declared.model_json_schema()
    return Adapted(tool.name, tool.description, {"type": "object", **schema}, call)


# ── the protocol ──

_VERSION = "2025-11-25"
_NO_METHOD, _NO_TOOL = -32601, -32602


class Server:
    """Answers the messages of one client. Each call runs in its own task.

    Args:
        tools: The tools by name.
        send: Writes one message.
    """

    def __init__(self, tools: dict[str, Adapted], send: Callable[[dict[str, Any]], None]) -> None:
        self._tools = tools
        self._send = send
        self._running: dict[object, Any] = {}

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Answer until the input ends. Then the running calls are cancelled."""
        import anyio  # noqa: PLC0415 — after sys.path was extended

        async with anyio.create_task_group() as group:
            async for line in lines:
                message = json.loads(line)
                method, number = message.get("method"), message.get("id")
                params = message.get("params") or {}
                if method == "tools/call":
                    scope = self._running[number] = anyio.CancelScope()
                    group.start_soon(self._call, number, params, scope)
                elif method == "notifications/cancelled":
                    running = self._running.get(params.get("requestId"))
                    if running is not None:
                        running.cancel()
                elif number is not None and method is not None:
                    self._send({"jsonrpc": "2.0", "id": number, **self._answer(method, params)})
            group.cancel_scope.cancel()

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return {
                "result": {
                    "protocolVersion": _VERSION,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "python tools", "version": "1"},
                }
            }
        if method == "tools/list":
            return {"result": {"tools": [tool.listed for tool in self._tools.values()]}}
        if method == "ping":
            return {"result": {}}
        return {"error": {"code": _NO_METHOD, "message": f"there is no method {method}"}}

    async def _call(self, number: object, params: dict[str, Any], scope: Any) -> None:
        tool = self._tools.get(params.get("name", ""))
        with scope:
            if tool is None:
                answer: dict[str, Any] = {
                    "error": {"code": _NO_TOOL, "message": "there is no such tool"}
                }
            else:
                answer = {"result": await _result_of(tool, params.get("arguments") or {})}
            self._send({"jsonrpc": "2.0", "id": number, **answer})
        self._running.pop(number, None)


async def _result_of(tool: Adapted, arguments: Arguments) -> dict[str, Any]:
    try:
        value = await tool.call(arguments)
    except Failure as failure:
        return {"content": [{"type": "text", "text": str(failure)}], "isError": True}
    except Exception as error:  # noqa: BLE001 — third-party code, which the kit judges
        raised = {"type": type(error).__name__, "location": _location(error)}
        text = f"{type(error).__name__}: {error}"
        return {
            "content": [{"type": "text", "text": text}],
            "isError": True,
            "_meta": {"amplifier/raised": raised},
        }
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}]}


def _location(error: BaseException) -> str | None:
    """Return the innermost line of the user's own code, ``file:line``."""
    installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        if not file.startswith((*installed, "<")):
            return f"{file}:{line}"
    return None


# ── the program ──


def find(reference: str) -> Any:
    """Import ``package:object``, or ``file.py:object``.

    Raises:
        AttributeError: The object doesn't exist.
        ImportError: The package can't be imported.
    """
    name, _, path = reference.partition(":")
    if name.endswith(".py"):
        file = Path(sys.path[0], name).resolve()
        sys.path.insert(0, str(file.parent))
        name = file.stem
    return functools.reduce(getattr, path.split("."), importlib.import_module(name))


def main(places: str, reference: str) -> int:
    """Serve an object until standard input ends. Return the exit code."""
    sys.path[:] = [*json.loads(places), *sys.path]
    # Text that the tools print must not come between the messages.
    out = os.dup(1)
    os.dup2(2, 1)
    import anyio  # noqa: PLC0415 — after sys.path was extended

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message, ensure_ascii=True).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]

    async def lines() -> AsyncIterator[bytes]:
        rest = b""
        while True:
            await anyio.wait_readable(0)
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if line.strip():
                    yield line

    async def run() -> None:
        tools = await adapt(find(reference))
        await Server({tool.name: tool for tool in tools}, send).serve(lines())

    try:
        anyio.run(run, backend="asyncio")
    except Exception as error:  # noqa: BLE001 — third-party code
        where = _location(error)
        place = f" at {where}" if where else ""
        sys.stderr.write(f"{type(error).__name__}: {error}{place}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
