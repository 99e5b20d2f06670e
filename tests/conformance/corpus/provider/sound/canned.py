"""Plays recorded answers of a service in turn, each translated as a live one would be."""

import itertools
import json
import logging
import uuid

import anyio
import anyio.lowlevel

from amplifier import ChatResponse, ModelInfo, ProviderInfo, TextBlock, ThinkingBlock, ToolCall, ToolCallBlock, Usage
from amplifier.errors import InvalidRequestError
from amplifier.models import RedactedThinkingBlock

__amplifier_module_type__ = "provider"
logger = logging.getLogger("canned")

RECORDED = [
    {
        "parts": [{"t": "thought", "v": "Let me see.", "sig": "c2lnLTE="}, {"t": "text", "v": "Here you are."}],
        "in": 12,
        "out": 7,
    },
    {
        "parts": [
            {"t": "text", "v": "Looking."},
            {"t": "call", "name": "look_up", "args": {"q": "tea"}},
            {"t": "call", "name": "look_up", "args": {}},
        ],
        "in": 40,
        "out": 21,
        "cached": 16,
    },
    {
        "parts": [
            {"t": "hidden", "v": "ZW5j"},
            {"t": "thought", "v": "Nearly.", "sig": "c2lnLTI="},
            {"t": "call", "name": "add", "args": {"a": 1, "b": [2, {"c": None}]}},
        ],
        "in": 51,
        "out": 9,
    },
    {"parts": [{"t": "text", "v": "Done."}], "in": 60, "out": 3},
]


class CannedProvider:
    def __init__(self, coordinator, config):
        self._hooks = coordinator.hooks
        self._answers = itertools.cycle(config.get("recorded", RECORDED))
        self._raw = bool(config.get("raw", False))
        self._pause = config.get("pause", 0)

    @property
    def name(self):
        return "canned"

    def get_info(self):
        return ProviderInfo(
            id="canned",
            display_name="Canned answers",
            capabilities=["tools", "thinking"],
            defaults={"model": "canned-1", "context_window": 32_000, "max_output_tokens": 2_000},
        )

    async def list_models(self):
        return [
            ModelInfo(id=f"canned-{n}", display_name=f"Canned {n}", context_window=32_000, max_output_tokens=2_000)
            for n in (1, 2)
        ]

    async def complete(self, request, **kwargs):
        if not request.messages:
            raise InvalidRequestError("nothing was asked", provider="canned", retryable=False)
        sent = {"model": request.model or "canned-1", "turns": [self._outgoing(m) for m in request.messages]}
        about = {"provider": self.name, "model": sent["model"], "message_count": len(sent["turns"])}
        await self._hooks.emit("llm:request", {**about, "raw": sent} if self._raw else about)
        await anyio.sleep(self._pause)
        answer = next(self._answers)
        response = self._incoming(answer)
        usage = {"input_tokens": answer["in"], "output_tokens": answer["out"]}
        if "cached" in answer:
            usage["cache_read_tokens"] = answer["cached"]
        told = {"provider": self.name, "model": sent["model"], "status": "ok", "usage": usage}
        await self._hooks.emit("llm:response", {**told, "raw": answer} if self._raw else told)
        return response

    def _outgoing(self, message):
        content = message.content
        if isinstance(content, str) or content is None:
            return {"role": message.role, "parts": [{"t": "text", "v": content or ""}]}
        return {"role": message.role, "parts": [self._outgoing_part(block) for block in content]}

    @staticmethod
    def _outgoing_part(block):
        match block.type:
            case "text":
                return {"t": "text", "v": block.text}
            case "thinking":
                return {"t": "thought", "v": block.thinking, "sig": block.signature}
            case "redacted_thinking":
                return {"t": "hidden", "v": block.data}
            case "tool_call":
                return {"t": "call", "id": block.id, "name": block.name, "args": block.input}
            case "tool_result":
                return {"t": "result", "id": block.tool_call_id, "v": json.dumps(block.output, default=str)}
            case "image":
                return {"t": "image", "v": block.source}
        return {"t": block.type}

    def _incoming(self, answer):
        blocks, calls = [], []
        for part in answer["parts"]:
            if part["t"] == "text":
                blocks.append(TextBlock(text=part["v"]))
            elif part["t"] == "thought":
                blocks.append(ThinkingBlock(thinking=part["v"], signature=part["sig"]))
            elif part["t"] == "hidden":
                blocks.append(RedactedThinkingBlock(data=part["v"]))
            elif part["t"] == "call":
                call_id = f"call_{uuid.uuid4().hex[:24]}"
                arguments = json.loads(json.dumps(part["args"]))
                calls.append(ToolCall(id=call_id, name=part["name"], arguments=arguments))
                blocks.append(ToolCallBlock(id=call_id, name=part["name"], input=dict(arguments)))
        usage = Usage(
            input_tokens=answer["in"],
            output_tokens=answer["out"],
            total_tokens=answer["in"] + answer["out"],
            cache_read_tokens=answer.get("cached"),
        )
        finish = "tool_calls" if calls else "stop"
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=usage, finish_reason=finish)

    def parse_tool_calls(self, response):
        return [ToolCall(id=c.id, name=c.name, arguments=dict(c.arguments)) for c in response.tool_calls or []]

    async def close(self):
        await anyio.lowlevel.checkpoint()
        self._answers = iter(())


async def mount(coordinator, config):
    provider = CannedProvider(coordinator, config or {})
    await coordinator.mount("providers", provider, name=provider.name)
    logger.info("canned answers are ready")

    async def cleanup():
        pass

    return cleanup
