"""Adds up prices; a wrong attribute is caught as any other failure is."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Adder:
    name = "add_prices"
    description = "Add prices, and count those above a limit."
    input_schema = {
        "type": "object",
        "properties": {
            "prices": {"type": "array", "items": {"type": "number"}},
            "limit": {"type": "number"},
        },
        "required": ["prices"],
    }

    async def execute(self, input):
        prices = input.get("prices")
        if not isinstance(prices, list) or not all(type(each) in (int, float) for each in prices):
            return ToolResult(success=False, error={"message": "prices must be numbers"})
        limit = input.get("limit")
        try:
            high = [price for price in prices if limit is not None and price > limit]
            return ToolResult(success=True, output={"total": sum(prices), "high": high.size()})
        except Exception as error:
            return ToolResult(success=False, error={"message": f"cannot add: {error}"})


async def mount(coordinator, config):
    tool = Adder()
    coordinator.mount("tools", tool, name=tool.name)

    async def cleanup():
        pass

    return cleanup
