"""A rule-based provider that picks a tool whose name occurs in the newest message; it reads tool schemas in strict form.

Fault: the strict form is made in place: `additionalProperties` and a full `required` are written into the parameters of the
request's tools, which belong to the caller and are the tool's own dict in many loops.
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
    ToolSpec,
    Usage,
    to_dict,
)

__amplifier_module_type__ = "provider"
MODEL = "rules-1"


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The form that strict mode wants: every object closed, every property required."""
    if schema.get("type") == "object":
        schema["additionalProperties"] = False
        schema["required"] = list(schema.get("properties", {}))
    for member in (schema.get("properties") or {}).values():
        if isinstance(member, dict):
            strict(member)
    items = schema.get("items")
    if isinstance(items, dict):
        strict(items)
    return schema


def describe(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description or "", "schema": strict(spec.parameters)}


class RulesProvider:
    name = "rules"

    def __init__(self, hooks: Any) -> None:
        self._hooks = hooks

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id=self.name,
            display_name="Rules",
            capabilities=["tools"],
            defaults={"model": MODEL, "context_window": 20_000, "max_output_tokens": 400},
        )

    async def list_models(self) -> list[ModelInfo]:
        return [
            ModelInfo(id=MODEL, display_name="R", context_window=20_000, max_output_tokens=400, capabilities=["tools"])
        ]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        tools = [describe(spec) for spec in request.tools or []]
        newest = request.messages[-1] if request.messages else None
        asked = sum(len(str(each.content)) for each in request.messages) // 4 + 1
        usage = Usage(input_tokens=asked, output_tokens=8, total_tokens=asked + 8)
        chosen = None
        if newest is not None and newest.role == "user" and request.tool_choice != "none":
            chosen = next((each for each in tools if each["name"] in str(newest.content)), None)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(usage)}
        )
        if chosen is None:
            text = f"I know {len(tools)} tools and need none of them."
            return ChatResponse(content=[TextBlock(text=text)], usage=usage, finish_reason="stop")
        call = ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=chosen["name"], arguments={})
        block = ToolCallBlock(id=call.id, name=call.name, input={})
        return ChatResponse(content=[block], tool_calls=[call], usage=usage, finish_reason="tool_use")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("providers", RulesProvider(coordinator.hooks))
