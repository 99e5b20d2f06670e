"""Planted: the input of a call lies on the tool while it waits."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Translate:
    name = "translate"
    description = "Translates, slowly."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        self._text = str(input.get("text", ""))
        await anyio.sleep(0.01)
        return ToolResult(output=self._text[::-1].upper()[::-1].lower())


async def mount(coordinator, config):
    await coordinator.mount("tools", Translate())
