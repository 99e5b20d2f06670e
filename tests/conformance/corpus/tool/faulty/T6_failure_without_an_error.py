"""Planted: a failure does not say what failed."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Divide:
    name = "divide"
    description = "Divides one number by another."

    def get_schema(self):
        number = {"type": "number"}
        return {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}

    async def execute(self, input):
        try:
            return ToolResult(output=input["a"] / input["b"])
        except Exception:
            return ToolResult(success=False)


async def mount(coordinator, config):
    await coordinator.mount("tools", Divide())
