"""Planted: the schema calls an item's text "title", the tool reads "name"."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Outline:
    name = "outline"
    description = "Makes an outline of sections."

    def get_schema(self):
        section = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
        return {
            "type": "object",
            "properties": {"sections": {"type": "array", "items": section, "minItems": 1}},
            "required": ["sections"],
        }

    async def execute(self, input):
        try:
            lines = [f"- {section['name']}" for section in input["sections"]]
        except Exception as error:
            return ToolResult(success=False, error={"message": f"malformed sections: {error!r}"})
        return ToolResult(output="\n".join(lines))


async def mount(coordinator, config):
    await coordinator.mount("tools", Outline())
