"""Reads lines such as ``a -> b``; one with two arrows raises."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Arrows:
    name = "read_arrows"
    description = "Read the two sides of an arrow."
    input_schema = {
        "type": "object",
        "properties": {"line": {"type": "string"}},
        "required": ["line"],
    }

    async def execute(self, input):
        line = input.get("line")
        if not isinstance(line, str):
            return ToolResult(success=False, error={"message": "line must be a string"})
        if "->" not in line:
            return ToolResult(success=True, output={"left": line, "right": None})
        left, right = line.split("->")
        return ToolResult(success=True, output={"left": left.strip(), "right": right.strip()})


async def mount(coordinator, config):
    tool = Arrows()
    coordinator.mount("tools", tool, name=tool.name)

    async def cleanup():
        pass

    return cleanup
