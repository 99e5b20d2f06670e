"""Planted: the schema offers LOW and HIGH, the tool knows low and high."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Volume:
    name = "volume"
    description = "Sets the volume."

    def get_schema(self):
        level = {"type": "string", "enum": ["LOW", "HIGH"]}
        return {"type": "object", "properties": {"level": level}, "required": ["level"]}

    async def execute(self, input):
        level = input.get("level")
        if level not in ("low", "high"):
            return ToolResult(success=False, error={"message": f"level must be low or high, got {str(level)[:40]}"})
        return ToolResult(output=level)


async def mount(coordinator, config):
    await coordinator.mount("tools", Volume())
