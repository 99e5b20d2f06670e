"""A provider for a llama.cpp server on this machine, over its chat endpoint.

Fault: an error of the transport or of the server is turned into an ordinary answer ("Sorry, ..."); the loop stores it as the
assistant's words, and no retry, fallback or error event ever happens.
"""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import urlsplit

import anyio

from amplifier import ChatRequest, ChatResponse, Message, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict

__amplifier_module_type__ = "provider"
logger = logging.getLogger(__name__)


def wire(message: Message) -> dict[str, Any]:
    if isinstance(message.content, str):
        text = message.content
    else:
        text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    role = message.role if message.role in ("system", "user", "assistant") else "user"
    return {"role": role, "content": text}


class Server:
    """As much of an HTTP client as one endpoint needs: a connection for each request, closed by the server."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout = timeout

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.0\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        received = b""
        with anyio.fail_after(self._timeout):
            async with await anyio.connect_tcp(self._host, self._port) as connection:
                await connection.send(head.encode() + content)
                async for part in connection:
                    received += part
        start, _, payload = received.partition(b"\r\n\r\n")
        status = int(start.split()[1])
        if status != 200:
            raise RuntimeError(f"the server answered {status}")
        data: dict[str, Any] = json.loads(payload)
        return data


class LlamaProvider:
    name = "llama"

    def __init__(self, hooks: Any, server: Server, model: str) -> None:
        self._hooks = hooks
        self._server = server
        self._model = model

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id=self.name,
            display_name="llama.cpp",
            defaults={"model": self._model, "context_window": 8_192, "max_output_tokens": 1_024},
        )

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id=self._model, display_name="Local", context_window=8_192, max_output_tokens=1_024)]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        model = request.model or self._model
        await self._hooks.emit("llm:request", {"provider": self.name, "model": model})
        body: dict[str, Any] = {"model": model, "messages": [wire(each) for each in request.messages]}
        if request.max_output_tokens is not None:
            body["max_tokens"] = request.max_output_tokens
        try:
            data = await self._server.post("/v1/chat/completions", body)
            text = data["choices"][0]["message"]["content"] or ""
            used = data.get("usage") or {}
        except Exception as error:
            logger.error("llama: %s", error)
            text, used = f"Sorry, the model could not be reached: {error}", {}
        asked, answered = int(used.get("prompt_tokens", 0)), int(used.get("completion_tokens", 0))
        usage = Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": model, "status": "ok", "usage": to_dict(usage)}
        )
        return ChatResponse(content=[TextBlock(text=text)], usage=usage, finish_reason="stop")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    config = config or {}
    server = Server(str(config.get("base_url") or "http://127.0.0.1:8080"), float(config.get("timeout", 60)))
    await coordinator.mount("providers", LlamaProvider(coordinator.hooks, server, str(config.get("model", "local"))))
