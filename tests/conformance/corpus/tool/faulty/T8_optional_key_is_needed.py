"""Planted: limit is optional in the schema, and nothing works without it."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Numbers:
    name = "numbers"
    description = "Counts up."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"start": {"type": "integer"}, "limit": {"type": "integer", "minimum": 1, "maximum": 100}},
            "required": ["start"],
        }

    async def execute(self, input):
        start, limit = input.get("start"), input.get("limit")
        if not isinstance(limit, int) or limit > 100:
            return ToolResult(success=False, error={"message": "limit must be a whole number up to 100"})
        if not isinstance(start, int):
            return ToolResult(success=False, error={"message": "start must be a whole number"})
        return ToolResult(output=list(range(start, start + limit)))


async def mount(coordinator, config):
    await coordinator.mount("tools", Numbers())
