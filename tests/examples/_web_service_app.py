"""Serves `examples/web_service.py` with a scripted model, under uvicorn on asyncio or hypercorn on trio."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from typing import Any

import anyio
import trio
import uvicorn
from hypercorn.config import Config
from hypercorn.trio import serve

from amplifier.models import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall
from tests._support.tree import ROOT
from tests.examples._held_app import wait_for_stop

spec = importlib.util.spec_from_file_location("web_service", ROOT / "examples" / "web_service.py")
assert spec is not None
assert spec.loader is not None
web_service = sys.modules["web_service"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(web_service)


class Model:
    """Calls the tool when the prompt is a number, holds when it is "hold", else says how many messages it sees."""

    name = "scripted"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="scripted", display_name="Scripted")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **_: Any) -> ChatResponse:
        last = request.messages[-1]
        if last.role == "tool":
            return ChatResponse(content=[TextBlock(text="Done.")])
        prompt = str(last.content if isinstance(last.content, str) else last.content[0].text)
        if prompt.isdecimal():
            call = ToolCall(
                id="call-1", name="transfer", arguments={"amount": int(prompt), "to": "Ben"}
            )
            return ChatResponse(content=[], tool_calls=[call])
        if prompt == "hold":
            print("model: holding", flush=True)
            try:
                await anyio.sleep_forever()
            finally:
                print("model: let go", flush=True)
        return ChatResponse(content=[TextBlock(text=f"I see {len(request.messages)} messages")])

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


def main(server: str) -> None:
    web_service.app.state.model = Model()
    if server == "uvicorn":
        uvicorn.run(
            web_service.app, host="127.0.0.1", port=0, access_log=False, timeout_graceful_shutdown=1
        )
        return
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.graceful_timeout = 1
    trio.run(partial(serve, web_service.app, config, shutdown_trigger=wait_for_stop))


if __name__ == "__main__":
    main(sys.argv[1])
