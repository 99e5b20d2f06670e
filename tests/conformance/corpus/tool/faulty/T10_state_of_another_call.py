"""Planted: what an answer says of its state is that of the call that started last."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Translate:
    name = "translate"
    description = "Translates, slowly."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = str(input.get("text", ""))
        self._state = f"translating {text}"
        await anyio.sleep(0.01)
        return ToolResult(output={"text": text.upper(), "state": self._state})


async def mount(coordinator, config):
    await coordinator.mount("tools", Translate())
