"""Sound: speaks the Messages protocol over HTTP in a worker thread, signatures and all."""

import json
import logging
import urllib.error
import urllib.request

import anyio.to_thread

from amplifier import (
    ChatResponse,
    ProviderInfo,
    RateLimitError,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)
from amplifier.errors import (
    AuthenticationError,
    InvalidRequestError,
    NetworkError,
    ProviderUnavailableError,
    StreamError,
)
from amplifier.models import RedactedThinkingBlock

__amplifier_module_type__ = "provider"

logger = logging.getLogger(__name__)
ERRORS = {400: InvalidRequestError, 401: AuthenticationError, 429: RateLimitError}


class WireProvider:
    name = "wire"

    def __init__(self, hooks, key, base_url, model):
        self.hooks = hooks
        self.key = key
        self.url = base_url.rstrip("/") + "/v1/messages"
        self.model = model

    def get_info(self):
        return ProviderInfo(
            id="wire", display_name="Wire", defaults={"context_window": 100_000, "max_output_tokens": 4096}
        )

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        body = {"model": request.model or self.model, "max_tokens": request.max_output_tokens or 1024}
        body["system"] = "\n".join(plain(m) for m in request.messages if m.role in ("system", "developer"))
        body["messages"] = [encode(m) for m in self.complete_calls(request.messages)]
        if request.tools:
            body["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": t.parameters} for t in request.tools
            ]
        if any("repaired" in json.dumps(m) for m in body["messages"]):
            await self.hooks.emit("provider:tool_sequence_repaired", {"provider": self.name})
        answer = await anyio.to_thread.run_sync(self.post, body, abandon_on_cancel=True)
        return await self.decode(answer)

    @staticmethod
    def complete_calls(messages):
        """The conversation without instructions, with a result for every call."""
        said = [m for m in messages if m.role not in ("system", "developer")]
        answered = {m.tool_call_id for m in said} | {
            b.tool_call_id for m in said if isinstance(m.content, list) for b in m.content if b.type == "tool_result"
        }
        for message in said:
            yield message
            blocks = message.content if isinstance(message.content, list) else []
            loose = [b.id for b in blocks if b.type == "tool_call" and b.id not in answered]
            if loose:
                yield loose

    def post(self, body):
        headers = {"content-type": "application/json", "x-api-key": self.key}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            kind = ERRORS.get(error.code, ProviderUnavailableError)
            raise kind(f"the service answered {error.code}", provider=self.name, status_code=error.code) from error
        except OSError as error:
            raise NetworkError(f"no connection: {error}", provider=self.name) from error
        except ValueError as error:
            raise StreamError(f"no JSON came back: {error}", provider=self.name) from error

    async def decode(self, answer):
        blocks = [block for block in map(decode, answer["content"]) if block is not None]
        calls = [ToolCall(id=b.id, name=b.name, arguments=b.input) for b in blocks if b.type == "tool_call"]
        asked, given = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        told = {"input_tokens": asked, "output_tokens": given}
        await self.hooks.emit("llm:response", {"provider": self.name, "usage": told})
        usage = Usage(input_tokens=asked, output_tokens=given, total_tokens=asked + given)
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=usage)

    def parse_tool_calls(self, response):
        return list(response.tool_calls or [])


def plain(message):
    if isinstance(message.content, str):
        return message.content
    return "\n".join(getattr(block, "text", "") for block in message.content)


def encode(message):
    if isinstance(message, list):
        results = [{"type": "tool_result", "tool_use_id": each, "content": "repaired: no result"} for each in message]
        return {"role": "user", "content": results}
    if message.role == "tool" and isinstance(message.content, str):
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        return {"role": "user", "content": [result]}
    role = "assistant" if message.role == "assistant" else "user"
    if isinstance(message.content, str):
        return {"role": role, "content": message.content or " "}
    return {"role": role, "content": [encode_block(block) for block in message.content]}


def encode_block(block):
    if block.type == "thinking" and block.signature:
        return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
    if block.type == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block.data}
    if block.type == "tool_call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    if block.type == "tool_result":
        return {"type": "tool_result", "tool_use_id": block.tool_call_id, "content": json.dumps(block.output)}
    if block.type == "image":
        return {"type": "image", "source": block.source}
    return {"type": "text", "text": getattr(block, "text", "") or f"[{block.type}]"}


def decode(part):
    if part["type"] == "text":
        return TextBlock(text=part["text"])
    if part["type"] == "thinking":
        return ThinkingBlock(thinking=part["thinking"], signature=part["signature"])
    if part["type"] == "redacted_thinking":
        return RedactedThinkingBlock(data=part["data"])
    if part["type"] == "tool_use":
        return ToolCallBlock(id=part["id"], name=part["name"], input=part["input"])
    return None


async def mount(coordinator, config):
    key = config.get("api_key")
    if not key:
        logger.warning("wire: no api_key in the plan, so it is not mounted")
        return None
    base_url = config.get("base_url", "https://wire.invalid")
    return WireProvider(coordinator.hooks, key, base_url, config.get("model", "wire-1"))
