"""A provider with a price list, for trying out budgets without a service.

Fault: prices are per million tokens, the cost of a response is computed per thousand; it is a thousand times the price that the
provider's own list and `estimate_cost` give.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from amplifier import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict
from amplifier.models import Pricing

__amplifier_module_type__ = "provider"

MODEL = "priced-1"
INPUT_PRICE = Decimal("3")
OUTPUT_PRICE = Decimal("15")
MAX_OUTPUT = 200


class PricedProvider:
    """Answers with the number of characters it was asked."""

    name = "priced"

    def __init__(self, hooks: Any) -> None:
        self._hooks = hooks

    def get_info(self) -> ProviderInfo:
        defaults = {"model": MODEL, "context_window": 50_000, "max_output_tokens": MAX_OUTPUT}
        return ProviderInfo(id=self.name, display_name="Priced", defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        pricing = Pricing(input_per_million=float(INPUT_PRICE), output_per_million=float(OUTPUT_PRICE))
        return [
            ModelInfo(
                id=MODEL, display_name="Priced", context_window=50_000, max_output_tokens=MAX_OUTPUT, pricing=pricing
            )
        ]

    def output_limit(self, request: ChatRequest, **kwargs: Any) -> int:
        return min(request.max_output_tokens or MAX_OUTPUT, MAX_OUTPUT)

    def estimate_cost(
        self, request: ChatRequest, *, input_tokens: int, output_tokens: int, **kwargs: Any
    ) -> Decimal | None:
        return (input_tokens * INPUT_PRICE + output_tokens * OUTPUT_PRICE) / 1_000_000

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        characters = sum(len(str(each.content)) for each in request.messages)
        text = f"{characters} characters."
        asked, answered = characters // 4 + 1, min(5, self.output_limit(request))
        cost = Decimal(asked) / 1000 * INPUT_PRICE + Decimal(answered) / 1000 * OUTPUT_PRICE
        usage = Usage(
            input_tokens=asked,
            output_tokens=answered,
            total_tokens=asked + answered,
            cost_usd=cost.quantize(Decimal("0.000001")),
        )
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(usage)}
        )
        return ChatResponse(content=[TextBlock(text=text)], usage=usage, finish_reason="stop")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("providers", PricedProvider(coordinator.hooks))
