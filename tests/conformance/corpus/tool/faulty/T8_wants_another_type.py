"""Planted: the schema says a list of tags, the tool takes a text with commas."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Tagger:
    name = "tag"
    description = "Tags something."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
            "required": ["tags"],
        }

    async def execute(self, input):
        tags = input.get("tags")
        if not isinstance(tags, str):
            return ToolResult(success=False, error={"message": f"tags must be str, got {type(tags).__name__}"})
        return ToolResult(output=[tag.strip() for tag in tags.split(",")])


async def mount(coordinator, config):
    await coordinator.mount("tools", Tagger())
