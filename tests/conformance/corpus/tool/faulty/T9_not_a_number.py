"""Planted: an empty list has the average NaN."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Average:
    name = "average"
    description = "The average of numbers."

    def get_schema(self):
        numbers = {"type": "array", "items": {"type": "number"}}
        return {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}

    async def execute(self, input):
        numbers = input.get("numbers")
        if not isinstance(numbers, list) or not all(isinstance(each, (int, float)) for each in numbers):
            return ToolResult(success=False, error={"message": "numbers must be a list of numbers"})
        return ToolResult(output=sum(numbers) / len(numbers) if numbers else float("nan"))


async def mount(coordinator, config):
    await coordinator.mount("tools", Average())
