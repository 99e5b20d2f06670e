"""Planted: a failure comes as success=True with an error."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Lookup:
    name = "capital_of"
    description = "Names the capital of a country."
    _CAPITALS = {"France": "Paris", "Peru": "Lima"}

    def get_schema(self):
        return {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]}

    async def execute(self, input):
        country = str(input.get("country"))
        if country not in self._CAPITALS:
            return ToolResult(output=None, error={"message": f"unknown country {country}"})
        return ToolResult(output=self._CAPITALS[country])


async def mount(coordinator, config):
    await coordinator.mount("tools", Lookup())
