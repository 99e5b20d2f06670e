"""The example's web application with a model and a tool that a test can hold: ``python -m tests.examples._held_app uvicorn``.

The tool prints when it has been called and when it is cancelled. It never returns by itself. `/left` returns what the turns so
far have left behind. uvicorn runs it on asyncio, hypercorn on trio.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from functools import partial
from typing import Any

import anyio
import trio
import uvicorn
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier import (
    AmplifierSession,
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.errors import InvalidRequestError
from examples.web_app import PLAN, make_app

SESSIONS: list[weakref.ref[AmplifierSession]] = []


class Hold:
    name = "hold"
    description = "Does not come back."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        print("tool: holding", flush=True)
        try:
            await anyio.sleep_forever()
        finally:
            print("tool: let go", flush=True)
        raise AssertionError("unreachable")


class Model:
    """Wants the tool when it hears "hold", fails when it hears "fail", else returns the number of messages in the request."""

    name = "planted"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name="Planted")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **options: Any) -> ChatResponse:
        if request.messages[-1].content == "hold":
            return ChatResponse(
                content=[], tool_calls=[ToolCall(id="call-1", name="hold", arguments={})]
            )
        if request.messages[-1].content == "fail":
            raise InvalidRequestError("this request is refused")
        return ChatResponse(content=[TextBlock(text=f"I see {len(request.messages)} messages")])

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


async def mount_tool(coordinator: Any, config: dict[str, Any]) -> Hold:
    SESSIONS.append(weakref.ref(coordinator.session))
    return Hold()


async def mount_model(coordinator: Any, config: dict[str, Any]) -> Model:
    return Model()


async def left(request: Request) -> Response:
    gc.collect()
    files = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if fd.isdigit() and _is_open(fd)
    ]
    return JSONResponse(
        {
            "sessions": len([one for one in SESSIONS if one() is not None]),
            "files": [name for name in files if "conversations" in name],
            "tasks": [
                task.name for task in anyio.get_running_tasks() if "amplifier" in (task.name or "")
            ],
        }
    )


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def main(server: str) -> None:
    plan = {
        **PLAN,
        "providers": [{"module": "provider-planted"}],
        "tools": [{"module": "tool-hold"}],
    }
    app = make_app(plan, {"provider-planted": mount_model, "tool-hold": mount_tool})
    app.routes.append(Route("/left", left))
    if server == "uvicorn":
        uvicorn.run(app, host="127.0.0.1", port=0, access_log=False, timeout_graceful_shutdown=1)
    else:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.graceful_timeout = 1
        trio.run(partial(serve, app, config, shutdown_trigger=wait_for_stop))  # type: ignore[arg-type]  # two names of ASGI


async def wait_for_stop() -> None:
    """Ctrl-C as a request, not as an exception in whichever task is at work: hypercorn swallows that one in a request's."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


if __name__ == "__main__":
    main(sys.argv[1])
