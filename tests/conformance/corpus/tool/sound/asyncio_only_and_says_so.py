"""Written for asyncio, and declared so."""

import asyncio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
__amplifier_backends__ = ("asyncio",)


class Gather:
    name = "gather_lengths"
    description = "Measures several texts at once."

    def get_schema(self):
        texts = {"type": "array", "items": {"type": "string"}, "maxItems": 20}
        return {"type": "object", "properties": {"texts": texts}, "required": ["texts"]}

    async def _length(self, text):
        await asyncio.sleep(0)
        return len(text)

    async def execute(self, input):
        texts = input.get("texts")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return ToolResult(success=False, error={"message": "texts must be a list of strings"})
        if len(texts) > 20:
            return ToolResult(success=False, error={"message": "at most 20 texts"})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._length(text)) for text in texts]
        return ToolResult(output=[task.result() for task in tasks])


async def mount(coordinator, config):
    await coordinator.mount("tools", Gather())
