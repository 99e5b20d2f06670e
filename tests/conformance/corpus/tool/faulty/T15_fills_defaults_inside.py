"""Plans a route.

Planted: missing options are filled into the nested object of the caller's input.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Route:
    name = "plan_route"
    description = "Plans a route between two places."
    input_schema = {
        "type": "object",
        "properties": {
            "start": {"type": "string"},
            "end": {"type": "string"},
            "options": {"type": "object", "properties": {"tolls": {"type": "boolean"}}},
        },
        "required": ["start", "end"],
    }

    async def execute(self, input):
        start, end, options = input.get("start"), input.get("end"), input.get("options", {})
        if not isinstance(start, str) or not isinstance(end, str) or not isinstance(options, dict):
            return ToolResult(success=False, error={"message": "start and end are texts, options is an object"})
        tolls = options.setdefault("tolls", True)
        if not isinstance(tolls, bool):
            return ToolResult(success=False, error={"message": "tolls is true or false"})
        return ToolResult(output={"route": [start, end], "tolls": tolls})


async def mount(coordinator, config):
    await coordinator.mount("tools", Route())
