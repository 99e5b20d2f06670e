"""Planted: the schema offers "median", which the tool has never heard of."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Statistics:
    name = "statistics"
    description = "Computes one figure of a list of numbers."
    _FIGURES = {"sum": sum, "max": max, "min": min}

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "figure": {"type": "string", "enum": ["sum", "max", "min", "median"]},
                "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 1},
            },
            "required": ["figure", "numbers"],
        }

    async def execute(self, input):
        figure, numbers = input.get("figure"), input.get("numbers")
        if not isinstance(figure, str) or figure not in self._FIGURES:
            return ToolResult(success=False, error={"message": f"unknown figure: {figure}"})
        try:
            return ToolResult(output=self._FIGURES[figure](numbers))
        except Exception as error:
            return ToolResult(success=False, error={"message": str(error)})


async def mount(coordinator, config):
    await coordinator.mount("tools", Statistics())
