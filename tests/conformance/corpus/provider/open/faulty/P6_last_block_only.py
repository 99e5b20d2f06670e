"""P6: only the last block of an answer is kept."""

from __future__ import annotations
import copy, itertools, json, logging, os, time, uuid
from typing import Any
import anyio
import anyio.lowlevel
from amplifier.errors import *
from amplifier.models import *

__amplifier_module_type__ = "provider"
log = logging.getLogger("acme")


class FakeService:
    """Stands for the vendor: takes and gives dicts."""

    def __init__(self):
        self.n = itertools.count(1)

    async def create(self, payload):
        await anyio.lowlevel.checkpoint()
        last = payload["messages"][-1]
        text = json.dumps(last["content"])
        content = [
            {"type": "thinking", "thinking": "let me see", "signature": "S1"},
            {"type": "text", "text": "ok " + text[:400]},
        ]
        if payload["tools"] and last["role"] == "user" and "tool" in text:
            for t in payload["tools"]:
                content.append(
                    {"type": "tool_use", "id": f"tu_{next(self.n)}", "name": t["name"], "input": {"q": text[:20]}}
                )
        return {"content": content, "usage": {"in": len(json.dumps(payload)) // 4, "out": 12}}


class Acme:
    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.config = config
        self.service = FakeService()
        self.setup()

    def setup(self):
        pass

    @property
    def name(self):
        return "acme"

    def get_info(self):
        return ProviderInfo(
            id="acme",
            display_name="Acme",
            capabilities=["tools"],
            defaults=dict(model="a1", context_window=100000, max_output_tokens=4096),
        )

    async def list_models(self):
        return [ModelInfo(id="a1", display_name="A1", context_window=100000, max_output_tokens=4096)]

    def encode(self, m):
        if isinstance(m.content, str):
            return dict(role="user" if m.role != "assistant" else "assistant", content=m.content)
        return dict(
            role="user" if m.role != "assistant" else "assistant", content=[self.encode_block(b) for b in m.content]
        )

    def encode_block(self, b):
        return to_dict(b)

    def decode_block(self, d):
        if d["type"] == "text":
            return TextBlock(text=d["text"])
        if d["type"] == "thinking":
            return ThinkingBlock(thinking=d["thinking"], signature=d["signature"])
        return ToolCallBlock(id=d["id"], name=d["name"], input=d["input"])

    async def complete(self, request, **kwargs):
        payload = dict(
            messages=[self.encode(m) for m in request.messages], tools=[dict(name=t.name) for t in request.tools or []]
        )
        raw = await self.service.create(payload)
        return await self.finish(request, raw)

    async def finish(self, request, raw):
        content = [self.decode_block(d) for d in raw["content"]][-1:]
        calls = [ToolCall(id=b.id, name=b.name, arguments=b.input) for b in content if isinstance(b, ToolCallBlock)]
        u = Usage(
            input_tokens=raw["usage"]["in"],
            output_tokens=raw["usage"]["out"],
            total_tokens=raw["usage"]["in"] + raw["usage"]["out"],
        )
        await self.coordinator.hooks.emit(
            "llm:response",
            dict(
                provider=self.name, model="a1", usage=dict(input_tokens=u.input_tokens, output_tokens=u.output_tokens)
            ),
        )
        return ChatResponse(content=content, tool_calls=calls or None, usage=u)

    def parse_tool_calls(self, response):
        return list(response.tool_calls or [])


async def mount(coordinator, config):
    p = Acme(coordinator, config or {})
    await coordinator.mount("providers", p, name="acme")
    return None
