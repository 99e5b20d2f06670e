"""The tool of the contract documents: one required text, one optional number, everything caught."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class MyTool:
    def __init__(self, config):
        self._limit = config.get("limit", 10)

    @property
    def name(self):
        return "my_tool"

    @property
    def description(self):
        return "Performs specific action with given parameters."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "required_param": {"type": "string", "description": "Description of parameter"},
                "optional_param": {"type": "integer", "default": 10},
            },
            "required": ["required_param"],
        }

    async def execute(self, input):
        try:
            required_param = input.get("required_param")
            if not required_param:
                return ToolResult(success=False, error={"message": "required_param is required"})
            return ToolResult(success=True, output=required_param[: input.get("optional_param", self._limit)])
        except Exception as error:
            return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})


async def mount(coordinator, config):
    tool = MyTool(config)
    await coordinator.mount("tools", tool, name="my-tool")
    return tool
