"""A provider for dry runs: it calls the offered tools in order, then reports what they returned.

Sound.
"""

from __future__ import annotations

import uuid
from typing import Any

from amplifier import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
    to_dict,
)

__amplifier_module_type__ = "provider"
MODEL = "dry-run"


def example_of(schema: dict[str, Any]) -> Any:
    """A small value that the schema is likely to accept."""
    if "default" in schema:
        return schema["default"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kinds = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    kind = schema.get("type")
    return kinds.get(kind) if isinstance(kind, str) else None


class DryRunProvider:
    name = "dry-run"

    def __init__(self, hooks: Any, calls_per_turn: int) -> None:
        self._hooks = hooks
        self._calls = calls_per_turn

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id=self.name,
            display_name="Dry run",
            capabilities=["tools"],
            defaults={"model": MODEL, "context_window": 8_000, "max_output_tokens": 500},
        )

    async def list_models(self) -> list[ModelInfo]:
        return [
            ModelInfo(
                id=MODEL, display_name="Dry run", context_window=8_000, max_output_tokens=500, capabilities=["tools"]
            )
        ]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        response = self._answer(request)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(response.usage)}
        )
        return response

    def _answer(self, request: ChatRequest) -> ChatResponse:
        asked = sum(len(str(each.content)) for each in request.messages) // 4 + 1
        results = [each for each in request.messages if each.role == "tool"]
        usage = Usage(input_tokens=asked, output_tokens=10, total_tokens=asked + 10)
        if not request.tools or request.tool_choice == "none" or len(results) >= self._calls:
            text = f"{len(results)} tools were called."
            return ChatResponse(content=[TextBlock(text=text)], usage=usage, finish_reason="stop")
        calls = []
        for spec in request.tools[: self._calls]:
            properties = spec.parameters.get("properties", {})
            needed = spec.parameters.get("required", [])
            arguments = {key: example_of(properties.get(key, {})) for key in needed}
            calls.append(ToolCall(id=f"call_{uuid.uuid4().hex}", name=spec.name, arguments=arguments))
        blocks = [ToolCallBlock(id=each.id, name=each.name, input=each.arguments) for each in calls]
        return ChatResponse(content=list(blocks), tool_calls=calls, usage=usage, finish_reason="tool_use")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    calls = int((config or {}).get("calls", 4))
    await coordinator.mount("providers", DryRunProvider(coordinator.hooks, calls))
