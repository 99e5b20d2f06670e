"""Planted: the schema allows 500 lines, the tool refuses more than 50."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Lines:
    name = "lines"
    description = "Makes lines."

    def get_schema(self):
        count = {"type": "integer", "minimum": 1, "maximum": 500}
        return {"type": "object", "properties": {"count": count}, "required": ["count"]}

    async def execute(self, input):
        count = input.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            return ToolResult(success=False, error={"message": "count must be a positive whole number"})
        if count > 50:
            return ToolResult(success=False, error={"message": "at most 50 lines"})
        return ToolResult(output=["line"] * count)


async def mount(coordinator, config):
    await coordinator.mount("tools", Lines())
