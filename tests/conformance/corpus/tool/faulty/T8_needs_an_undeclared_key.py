"""Planted: the tool needs a unit that the schema does not name."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Temperature:
    name = "temperature"
    description = "Converts a temperature."

    def get_schema(self):
        return {"type": "object", "properties": {"degrees": {"type": "number"}}, "required": ["degrees"]}

    async def execute(self, input):
        try:
            degrees, unit = float(input["degrees"]), str(input["unit"])
        except Exception as error:
            return ToolResult(success=False, error={"message": repr(error)})
        return ToolResult(output=f"{degrees * 9 / 5 + 32} {unit}")


async def mount(coordinator, config):
    await coordinator.mount("tools", Temperature())
