"""Planted: what an answer says of its state is that of the call that started last."""

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Repeat:
    name = "repeat"
    description = "Repeats a text, slowly."

    def get_schema(self):
        return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def execute(self, input):
        text = str(input.get("text", ""))
        self._state = f"repeating {text}"
        await anyio.sleep(0.01)
        return ToolResult(output={"text": text, "state": self._state})


async def mount(coordinator, config):
    await coordinator.mount("tools", Repeat())
