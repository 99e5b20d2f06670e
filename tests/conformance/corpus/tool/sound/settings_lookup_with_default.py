"""Looks settings up; what is not there is a failure unless a default is given."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Setting:
    name = "setting"
    description = "Reads a setting of the project."

    def __init__(self, settings):
        self._settings = settings

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "key": {"type": "string", "enum": ["theme", "language", "editor"]},
                "default": {"type": "string"},
            },
            "required": ["key"],
        }

    async def execute(self, input):
        key = input.get("key")
        if isinstance(key, str) and key in self._settings:
            return ToolResult(output=str(self._settings[key]))
        if isinstance(input.get("default"), str):
            return ToolResult(output=input["default"])
        return ToolResult(success=False, error={"message": f"{key!r} is not set, and no default is given"})


async def mount(coordinator, config):
    await coordinator.mount("tools", Setting({"theme": "dark", **config}))
