"""Sound: plays a fixed script in turn, thinks with a signature, numbers its calls; the instance is returned."""

from copy import deepcopy
from itertools import count

from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

__amplifier_module_type__ = "provider"

_numbers = count(1)  # ids only have to be new, whichever session asks


class ScriptedProvider:
    def __init__(self, coordinator, config):
        self._coordinator = coordinator
        self._turn = 0
        self._raw = bool(config.get("raw", False))

    @property
    def name(self) -> str:
        return "scripted"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id="scripted",
            display_name="A script",
            capabilities=["tools", "thinking"],
            defaults={"model": "script", "context_window": 200_000, "max_output_tokens": 8192},
        )

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **kwargs) -> ChatResponse:
        turn, self._turn = self._turn, self._turn + 1
        asked = {"provider": self.name, "message_count": len(request.messages)}
        if self._raw:
            asked["raw"] = deepcopy(repr(request))
        await self._coordinator.hooks.emit("llm:request", asked)
        if turn % 2 == 0 and request.tools:
            blocks = [
                ThinkingBlock(thinking=f"I should look ({turn}).", signature="c2lnbmVk"),
                TextBlock(text="Let me see."),
                *(ToolCallBlock(id=f"call-{next(_numbers)}", name=tool.name, input={}) for tool in request.tools),
            ]
        else:
            blocks = [TextBlock(text=f"That was turn {turn}.")]
        calls = [ToolCall(id=b.id, name=b.name, arguments=dict(b.input)) for b in blocks if b.type == "tool_call"]
        usage = Usage(input_tokens=100 + turn, output_tokens=20, total_tokens=120 + turn, cache_read_tokens=60)
        told = {"input_tokens": 100 + turn, "output_tokens": 20, "cache_read_tokens": 60}
        answer = {"provider": self.name, "status": "ok", "usage": told}
        if self._raw:
            answer["raw"] = repr(blocks)
        await self._coordinator.hooks.emit("llm:response", answer)
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=usage)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return [ToolCall(id=b.id, name=b.name, arguments=b.input) for b in response.content if b.type == "tool_call"]


async def mount(coordinator, config):
    return ScriptedProvider(coordinator, config or {})
